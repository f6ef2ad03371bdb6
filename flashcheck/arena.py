"""Arena: the tensors of one call laid out in one byte buffer, with guard bands between them.

    | guard | storage of q | guard | guard | storage of k | guard | ...

A plan says where each tensor lies and depends on shapes, dtype, layout and what repeats alone, so
that the memory that does not count (the guards, the padding of a padded layout) can change while
every address stays the same. Options that are tensors are among them. Nothing here needs torch
except `tensors`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from flashcheck.formats import Array
from flashcheck.grad_out import GradLayout, GradOut
from flashcheck.inputs import LENGTHS, Inputs, Layout

if TYPE_CHECKING:
    import torch

Bytes = NDArray[np.uint8]
Guard = Literal["zeros", "nan"]
Order = Literal["bhsd", "bshd"]

ALIGNMENT = 64
GUARD = 256
PAD_CHANNELS = 16
PAD_ROWS = 3

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "bool": np.dtype(np.bool_),
    "int32": np.dtype(np.int32),
}

# All ones is a quiet NaN in every float format above; a bool must stay 0 or 1.
_GUARD_BYTE: dict[tuple[Guard, bool], int] = {
    ("zeros", False): 0,
    ("zeros", True): 0,
    ("nan", False): 0xFF,
    ("nan", True): 1,
}

HEADED = ("q", "k", "v", "grad_out")
"""Tensors whose axes a kernel's order turns."""


class Option(NamedTuple):
    """An option that is a tensor. repeats: whether an axis holds the same numbers over and over."""

    name: str
    shape: tuple[int, ...]
    repeats: tuple[bool, ...]


class Key(NamedTuple):
    """What a plan depends on. Shapes are [B, H, L, D] whatever the kernel's `order`."""

    dtype: str
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    layout: Layout
    mask: tuple[int, ...] | None
    mask_dtype: str
    mask_repeats: tuple[bool, ...]
    order: Order
    grad_out: tuple[int, ...] | None = None
    grad_layout: GradLayout = "contiguous"
    pages: tuple[int, int] | None = None
    options: tuple[Option, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A strided tensor inside a storage.

    shape    as the kernel sees it: [B, H, L, D], or [B, L, H, D] for order "bshd"; an option's own
    strides  in elements, one per axis of `shape`
    offset   of the first element, in elements from the start of the storage
    """

    name: str
    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Storage:
    """The memory of one tensor, or of q, k and v together (packed).

    start, count  the first byte, aligned, and the number of elements
    begin, end    the bytes that it owns, its two guards included
    """

    names: tuple[str, ...]
    dtype: str
    start: int
    count: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything lies in a buffer of `size` bytes."""

    key: Key
    views: tuple[View, ...]
    storages: tuple[Storage, ...]
    size: int


def key_of(inputs: Inputs, order: Order, grad_out: GradOut | None = None) -> Key:
    """The key of the plan for `inputs` as a kernel of this order receives them."""
    return Key(
        dtype=inputs.dtype,
        q=inputs.q.shape,
        k=inputs.k.shape,
        v=inputs.v.shape,
        layout=inputs.layout,
        mask=None if inputs.mask is None else inputs.mask.shape,
        mask_dtype=inputs.mask_dtype,
        mask_repeats=_repeats(inputs.mask),
        order=order,
        grad_out=None if grad_out is None else grad_out.values.shape,
        grad_layout="contiguous" if grad_out is None else grad_out.layout,
        pages=None if inputs.pages is None else (inputs.pages.count, inputs.pages.size),
        options=tuple(
            Option(name, values.shape, () if name in LENGTHS else _same(values, inputs.layout))
            for name, values in inputs.option_tensors.items()
        ),
    )


@lru_cache(maxsize=256)
def plan(key: Key) -> Plan:
    """Lay out q, k, v, the mask, grad_out and the options that are tensors.

    Plans of equal keys are equal, in every process.
    """
    builder = _Builder(key)
    layout = key.layout
    if layout == "packed" and not (key.q == key.k == key.v and key.pages is None):
        layout = "transposed"
    if layout == "packed":
        builder.packed()
    else:
        builder.tensor("q", key.q, layout)
        for name, shape in (("k", key.k), ("v", key.v)):
            if key.pages is None:
                builder.tensor(name, shape, layout)
            else:
                builder.pool(name, key.pages, shape, layout)
    if key.mask is not None:
        builder.broadcast("mask", key.mask_dtype, key.mask, key.mask_repeats, layout)
    if key.grad_out is not None:
        builder.grad_out(key.grad_out, key.grad_layout)
    for option in key.options:
        if option.name in LENGTHS:
            builder.lengths(option, layout)
        else:
            builder.broadcast(option.name, "float32", option.shape, option.repeats, layout)
    return Plan(key, tuple(builder.views), tuple(builder.storages), builder.end)


class _Builder:
    def __init__(self, key: Key) -> None:
        self.key = key
        self.views: list[View] = []
        self.storages: list[Storage] = []
        self.end = 0

    def storage(self, names: tuple[str, ...], dtype: str, count: int) -> int:
        count = max(count, 1)  # torch refuses a buffer without elements
        begin = self.end
        start = begin + GUARD
        size = count * NUMPY_DTYPES[dtype].itemsize
        self.end = -(-(start + size + GUARD) // ALIGNMENT) * ALIGNMENT
        self.storages.append(Storage(names, dtype, start, count, begin, self.end))
        return len(self.storages) - 1

    def tensor(self, name: str, shape: tuple[int, ...], layout: Layout) -> None:
        """q, k, v or grad_out, of shape [B, H, L, D], alone in its storage."""
        b, h, length, d = shape
        moved = layout == "transposed" or layout == f"mixed_{name}"
        heads_first = (self.key.order == "bhsd") != moved
        same_batch = name in ("k", "v") and layout == "expanded_batch"
        same_head = name in ("k", "v") and layout == "expanded_heads"
        b, h = (1 if same_batch else b), (1 if same_head else h)
        if layout == "padded":
            length, d = length + PAD_ROWS, d + PAD_CHANNELS
        if heads_first:
            sb, sh, sl, sd = _contiguous((b, h, length, d))
        else:
            sb, sl, sh, sd = _contiguous((b, length, h, d))
        step = 2 if layout == "strided" else 1
        sb, sh, sl, sd = (step * stride for stride in (sb, sh, sl, sd))
        sb, sh = (0 if same_batch else sb), (0 if same_head else sh)
        offset = 1 if layout == "offset" else 0
        storage = self.storage((name,), self.key.dtype, step * b * h * length * d + offset)
        self._view(name, storage, shape, (sb, sh, sl, sd), offset)

    def pool(
        self, name: str, pages: tuple[int, int], shape: tuple[int, ...], layout: Layout
    ) -> None:
        """k or v of a paged cache: [pages in all, page size, Hkv, D]."""
        (count, size), (_, h, _, d) = pages, shape
        # A pool has no batch that could repeat.
        layout = "contiguous" if layout.startswith("expanded") else layout
        moved = layout in ("transposed", f"mixed_{name}")
        stored_size, stored_d = size, d
        if layout == "padded":
            stored_size, stored_d = size + PAD_ROWS, d + PAD_CHANNELS
        if moved:
            sp, sh, sl, sd = _contiguous((count, h, stored_size, stored_d))
        else:
            sp, sl, sh, sd = _contiguous((count, stored_size, h, stored_d))
        step, offset = (2 if layout == "strided" else 1), (1 if layout == "offset" else 0)
        strides = (step * sp, step * sl, step * sh, step * sd)
        elements = step * count * h * stored_size * stored_d + offset
        storage = self.storage((name,), self.key.dtype, elements)
        self.views.append(View(name, storage, (count, size, h, d), strides, offset))

    def broadcast(
        self, name: str, dtype: str, shape: tuple[int, ...], repeats: tuple[bool, ...],
        layout: Layout,
    ) -> None:  # fmt: skip
        """The mask or an option, as it is passed; axes that repeat have stride 0."""
        stored = [1 if again else n for n, again in zip(shape, repeats, strict=True)]
        axes = list(range(len(shape)))
        if layout in ("transposed", "packed") and len(axes) > 1:
            axes[-2:] = axes[:-3:-1]
        step, offset = (2 if layout == "strided" else 1), (1 if layout == "offset" else 0)
        if name != "mask" and len(axes) == 1 and layout in ("transposed", "packed", "padded"):
            step = 1 + PAD_ROWS  # a column of a matrix
        elif layout == "padded" and axes:
            stored[-1] += PAD_CHANNELS
        ordered = _contiguous(tuple(stored[axis] for axis in axes))
        strides = [0] * len(shape)
        for axis, stride in zip(axes, ordered, strict=True):
            strides[axis] = 0 if repeats[axis] else step * stride
        count = step * math.prod(stored) + offset
        storage = self.storage((name,), dtype, count)
        self.views.append(View(name, storage, shape, tuple(strides), offset))

    def lengths(self, option: Option, layout: Layout) -> None:
        """int32: lengths, or a table whose rows may be longer in memory."""
        stored, offset = list(option.shape), 0
        if option.name == "block_table":
            stored[-1] += PAD_CHANNELS if layout != "contiguous" else 0
            offset = 1 if layout == "offset" else 0
        storage = self.storage((option.name,), "int32", math.prod(stored) + offset)
        strides = _contiguous(tuple(stored))
        self.views.append(View(option.name, storage, option.shape, strides, offset))

    def grad_out(self, shape: tuple[int, ...], layout: GradLayout) -> None:
        """The gradient of out, alone in its storage; an expanded one is a single element."""
        if layout != "expanded":
            self.tensor("grad_out", shape, layout)
            return
        storage = self.storage(("grad_out",), self.key.dtype, 1)
        self._view("grad_out", storage, shape, (0, 0, 0, 0), 0)

    def packed(self) -> None:
        """q, k and v as [B, L, 3, H, D], as one projection of the activations gives them."""
        b, h, length, d = self.key.q
        sb, sl, part, sh, sd = _contiguous((b, length, 3, h, d))
        names = ("q", "k", "v")
        storage = self.storage(names, self.key.dtype, b * length * 3 * h * d)
        for i, name in enumerate(names):
            self._view(name, storage, self.key.q, (sb, sh, sl, sd), i * part)

    def _view(
        self,
        name: str,
        storage: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        offset: int,
    ) -> None:
        if self.key.order == "bshd":
            shape = (shape[0], shape[2], shape[1], shape[3])
            strides = (strides[0], strides[2], strides[1], strides[3])
        self.views.append(View(name, storage, shape, strides, offset))


def _repeats(mask: NDArray[Any] | None) -> tuple[bool, ...]:
    """Which axes of the mask hold the same elements over and over (stride 0)."""
    if mask is None:
        return ()
    return tuple(s == 0 and n > 1 for n, s in zip(mask.shape, mask.strides, strict=True))


def _same(values: NDArray[Any], layout: Layout) -> tuple[bool, ...]:
    """Which axes of an option hold the same numbers over and over, in a layout that expands."""
    if not layout.startswith("expanded"):
        return (False,) * values.ndim
    # -0.0 is not 0.0.
    bits = np.ascontiguousarray(values, np.float64).view(np.int64).reshape(values.shape)
    return tuple(
        values.shape[axis] > 1 and bool((bits == bits.take([0], axis)).all())
        for axis in range(values.ndim)
    )


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as torch computes them: an axis of length 0 counts as 1."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)


# -- writing and reading ------------------------------------------------------------------


def write(
    plan: Plan,
    inputs: Inputs,
    buffer: Bytes,
    guard: Guard = "zeros",
    grad_out: Array | None = None,
) -> None:
    """Fill buffer[:plan.size]: every byte is a value of a tensor or a guard."""
    for storage in plan.storages:
        owned = buffer[storage.begin : storage.end]
        if storage.dtype == "int32":
            owned.view(np.int32)[:] = beside(inputs, storage.names[0], guard)
        else:
            owned[:] = _GUARD_BYTE[guard, storage.dtype == "bool"]
    values: Mapping[str, NDArray[Any] | None] = {
        "q": inputs.q,
        "k": inputs.k,
        "v": inputs.v,
        "mask": inputs.mask,
        "grad_out": grad_out,
        **inputs.option_tensors,
    }
    for view in plan.views:
        array = values[view.name]
        assert array is not None
        if inputs.pages is not None and view.name in ("k", "v"):
            _write_pages(inputs, array, array_view(plan, view, buffer))
            continue
        if view.name in HEADED and plan.key.order == "bshd":
            array = array.swapaxes(1, 2)
        target = array_view(plan, view, buffer)
        once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in view.strides)
        # The values are representable, so that this cast is exact.
        np.copyto(target[(*once, ...)], array[(*once, ...)], casting="unsafe")


def beside(inputs: Inputs, name: str, guard: Guard) -> int:
    """What lies around a table or lengths: a valid page or length, and seldom the right one.

    So a kernel that reads it does not crash, as one that reads NaN does not.
    """
    if guard == "zeros":
        return 0
    if name == "block_table":
        assert inputs.pages is not None
        unused = np.setdiff1d(np.arange(inputs.pages.count), inputs.pages.table)
        return int(unused[-1]) if unused.size else inputs.pages.count - 1
    return int((inputs.q if name == "cu_seqlens_q" else inputs.k).shape[2])


def _write_pages(inputs: Inputs, array: Array, pool: NDArray[Any]) -> None:
    """[B, Hkv, Lk, D] into [pages, page size, Hkv, D]; unused pages stay as they are."""
    pages, lengths = inputs.pages, inputs.seqlens_k
    assert pages is not None
    assert lengths is not None
    for b, n in enumerate(lengths):
        for i in range(-(-n // pages.size)):
            keys = array[b, :, i * pages.size : (i + 1) * pages.size].swapaxes(0, 1)
            np.copyto(pool[pages.table[b, i]], keys, casting="unsafe")


def pool(inputs: Inputs, array: Array, guard: Guard) -> Array:
    """k or v of a paged cache, [B, Hkv, Lk, D], as the pool [pages, page size, Hkv, D] that
    `write` makes of it."""
    pages = inputs.pages
    assert pages is not None
    _, heads, _, dim = array.shape
    fill = math.nan if guard == "nan" else 0.0
    made = np.full((pages.count, pages.size, heads, dim), fill)
    _write_pages(inputs, array, made)
    return made


def array_view(plan: Plan, view: View, buffer: Bytes) -> NDArray[Any]:
    """A view as a NumPy array (ml_dtypes for bfloat16 and float8), writable."""
    storage = plan.storages[view.storage]
    dtype = NUMPY_DTYPES[storage.dtype]
    return np.ndarray(
        view.shape,
        dtype,
        buffer.data,
        storage.start + view.offset * dtype.itemsize,
        tuple(stride * dtype.itemsize for stride in view.strides),
    )


def tensors(plan: Plan, buffer: Bytes | torch.Tensor) -> dict[str, torch.Tensor]:
    """Torch views on the buffer (a uint8 tensor on a device, or bytes on the CPU).

    On the CPU each tensor has a storage of its own, as a user's tensors have; the storages
    keep the buffer alive.
    """
    import torch

    bases: list[torch.Tensor] = []
    for storage in plan.storages:
        dtype = getattr(torch, storage.dtype)
        if isinstance(buffer, torch.Tensor):
            size = storage.count * NUMPY_DTYPES[storage.dtype].itemsize
            bases.append(buffer[storage.start : storage.start + size].view(dtype))
        else:
            bases.append(
                torch.frombuffer(
                    buffer.data, dtype=dtype, count=storage.count, offset=storage.start
                )
            )
    return {
        view.name: bases[view.storage].as_strided(
            view.shape, view.strides, bases[view.storage].storage_offset() + view.offset
        )
        for view in plan.views
    }


def changed(plan: Plan, before: Bytes, after: Bytes) -> tuple[str, ...]:
    """The tensors whose bytes, or the bytes around them, differ between two buffers."""
    if np.array_equal(before[: plan.size], after[: plan.size]):
        return ()
    where = np.flatnonzero(before[: plan.size] != after[: plan.size])
    names: list[str] = []
    for storage in plan.storages:
        inside = where[(where >= storage.begin) & (where < storage.end)]
        if not inside.size:
            continue
        if len(storage.names) == 1:
            names += storage.names
            continue
        _, h, _, d = plan.key.q
        element = (inside - storage.start) // NUMPY_DTYPES[storage.dtype].itemsize
        element = np.clip(element, 0, storage.count - 1)  # a guard belongs to its neighbour
        parts = np.unique(element // (h * d) % len(storage.names))
        names += [storage.names[int(part)] for part in parts]
    return tuple(names)
