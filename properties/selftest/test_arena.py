"""The arena: right values at the right strides, and guards that hold what they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from flashcheck import arena, tensors
from flashcheck.arena import Bytes, Guard, Order
from flashcheck.formats import FORMATS
from flashcheck.inputs import LAYOUTS, Inputs, Layout, Pages

B, HQ, HKV, LQ, LK, D, DV = 2, 4, 2, 3, 5, 8, 6


def make(
    layout: Layout = "contiguous",
    dtype: str = "float32",
    *,
    same: bool = False,
    lk: int = LK,
    mask: bool | None = None,
) -> Inputs:
    """Inputs with distinct values; `same` makes q, k and v alike, as packing asks for."""
    rng = np.random.default_rng(1)

    def tensor(h: int, length: int, d: int, *, repeats: bool = True) -> np.ndarray:
        x = FORMATS[dtype].round(rng.normal(size=(B, h, length, d)))
        if repeats and layout == "expanded_batch":
            x[:] = x[:1]
        if repeats and layout == "expanded_heads":
            x[:] = x[:, :1]
        return x

    q = tensor(HQ, LQ, D, repeats=False)
    q[0, 0, 0, 0] = -0.0
    k = tensor(HQ, LQ, D) if same else tensor(HKV, lk, D)
    v = tensor(HQ, LQ, D) if same else tensor(HKV, lk, DV)
    values = None
    if mask is not None:
        seen = rng.normal(size=(1, HQ, LQ, k.shape[2])) > 0
        values = seen if mask else np.where(seen, 0.5, -np.inf)
    kind = "bool" if mask in (None, True) else "float32"
    return Inputs(dtype, q, k, v, mask=values, mask_dtype=kind, layout=layout)


def lay(
    inputs: Inputs, guard: Guard = "zeros", order: Order = "bhsd"
) -> tuple[arena.Plan, Bytes, dict[str, torch.Tensor]]:
    plan = arena.plan(arena.key_of(inputs, order))
    buffer = np.full(plan.size + 64, 0xAA, np.uint8)
    shift = -buffer.ctypes.data % 64
    buffer = buffer[shift : shift + plan.size]
    arena.write(plan, inputs, buffer, guard)
    return plan, buffer, arena.tensors(plan, buffer)


def same_bits(tensor: torch.Tensor, expected: np.ndarray) -> bool:
    got = tensor.double().numpy()
    return np.array_equal(got, expected) and np.array_equal(np.signbit(got), np.signbit(expected))


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("guard", ["zeros", "nan"])
def test_every_layout_gives_the_values(
    layout: Layout, same: bool, order: Order, guard: Guard
) -> None:
    inputs = make(layout, same=same, mask=False)
    _, _, got = lay(inputs, guard, order)
    for name in ("q", "k", "v"):
        x = got[name] if order == "bhsd" else got[name].transpose(1, 2)
        assert same_bits(x, getattr(inputs, name)), name
    assert inputs.mask is not None
    assert same_bits(got["mask"], inputs.mask)
    assert np.signbit(got["q"][0, 0, 0, 0].item())


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_every_dtype_is_exact_and_its_guard_is_nan(dtype: str) -> None:
    inputs = make("padded", dtype)
    plan, buffer, got = lay(inputs, "nan")
    assert got["q"].dtype == getattr(torch, dtype)
    assert same_bits(got["q"], inputs.q)
    assert same_bits(got["v"], inputs.v)
    storage = plan.storages[0]
    raw = torch.from_numpy(buffer)[storage.begin : storage.end].view(getattr(torch, dtype))
    numbers = int((~raw.double().isnan()).sum())
    assert numbers == inputs.q.size  # everything around and between the elements is NaN
    lay(inputs, "zeros")


def test_strides() -> None:
    def strides(
        layout: Layout, name: str = "k", order: Order = "bhsd", same: bool = False
    ) -> tuple[tuple[int, ...], int | torch.SymInt]:
        t = lay(make(layout, same=same), order=order)[2][name]
        return t.stride(), t.storage_offset()

    assert strides("contiguous") == ((HKV * LK * D, LK * D, D, 1), 0)
    assert strides("contiguous", order="bshd") == ((HKV * LK * D, HKV * D, D, 1), 0)
    assert strides("transposed") == ((HKV * LK * D, D, HKV * D, 1), 0)
    assert strides("transposed", order="bshd") == ((HKV * LK * D, D, LK * D, 1), 0)
    assert strides("packed") == strides("transposed")
    row = 3 * HQ * D
    assert strides("packed", same=True) == ((LQ * row, D, row, 1), HQ * D)
    assert strides("packed", same=True, order="bshd") == ((LQ * row, row, D, 1), HQ * D)
    pd, pl = D + arena.PAD_CHANNELS, LK + arena.PAD_ROWS
    assert strides("padded") == ((HKV * pl * pd, pl * pd, pd, 1), 0)
    assert strides("offset") == ((HKV * LK * D, LK * D, D, 1), 1)
    assert strides("expanded_batch") == ((0, LK * D, D, 1), 0)
    assert strides("expanded_heads") == ((LK * D, 0, D, 1), 0)
    assert strides("expanded_heads", "q") == ((HQ * LQ * D, LQ * D, D, 1), 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_keys(layout: Layout) -> None:
    inputs = make(layout, lk=0, mask=True)
    got = lay(inputs, "nan")[2]
    assert got["k"].shape == (B, HKV, 0, D)
    assert got["v"].shape == (B, HKV, 0, DV)
    assert got["mask"].shape == (1, HQ, LQ, 0)
    assert same_bits(got["q"], inputs.q)


def test_alignment_and_guards() -> None:
    plan, buffer, got = lay(make("padded", mask=True), "nan")
    assert all(t.data_ptr() % arena.ALIGNMENT == 0 for t in got.values())
    for s in plan.storages:
        assert s.start - s.begin >= arena.GUARD
        assert s.end - s.start - s.count * arena.NUMPY_DTYPES[s.dtype].itemsize >= arena.GUARD
    mask = plan.storages[-1]
    assert set(buffer[mask.begin : mask.end]) <= {0, 1}
    assert set(buffer[mask.begin : mask.start]) == {1}


def test_guards_change_and_addresses_do_not() -> None:
    inputs = make("padded")
    plan, buffer, got = lay(inputs)
    before = {name: t.data_ptr() for name, t in got.items()}
    arena.write(plan, inputs, buffer, "nan")
    again = arena.tensors(plan, buffer)
    assert before == {name: t.data_ptr() for name, t in again.items()}
    assert same_bits(got["k"], inputs.k)


def test_changes_are_named() -> None:
    plan, buffer, got = lay(make(mask=True))
    clean = buffer.copy()
    assert arena.changed(plan, clean, buffer) == ()
    got["k"][0, 0, 0, 0] += 1
    got["mask"].logical_not_()
    assert arena.changed(plan, clean, buffer) == ("k", "mask")
    buffer[:] = clean
    buffer[plan.storages[2].end - 1] ^= 1
    assert arena.changed(plan, clean, buffer) == ("v",)

    plan, buffer, got = lay(make("packed", same=True))
    clean = buffer.copy()
    got["k"][1, 2, 1, 3] += 1
    assert arena.changed(plan, clean, buffer) == ("k",)


# -- options ------------------------------------------------------------------------------

TABLE = np.array([[3, 1, 1], [0, 4, 1]])
EQUAL = np.full(HQ, 0.5)


def with_options(layout: Layout = "contiguous", kind: str = "paged") -> Inputs:
    """Slopes that differ, sinks that do not, and tables, lengths or factors by block and head."""
    if kind == "paged":
        k, v = np.zeros((B, HKV, 6, D)), np.zeros((B, HKV, 6, DV))
        return make(layout).with_(
            k=k, v=v, alibi_slopes=np.arange(4.0), sinks=EQUAL, seqlens_k=(4, 3),
            pages=Pages(2, 6, TABLE),
        )  # fmt: skip
    if kind == "packed":
        x = make(layout).with_(q=np.zeros((1, HQ, LQ, D)), k=np.zeros((1, HKV, LK, D)))
        return x.with_(v=np.zeros((1, HKV, LK, DV)), seqlens_q=(1, 2), seqlens_k=(0, 5))
    return make(layout, "float8_e4m3fn").with_(
        q_descale=np.arange(1.0, 1 + B * HKV * LQ).reshape(B, HKV, LQ),
        k_descale=np.full((B, HKV), 2.0), v_descale=np.array(3.0),
    )  # fmt: skip


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@pytest.mark.parametrize("kind", ["paged", "packed", "float8"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("guard", ["zeros", "nan"])
def test_options(layout: Layout, kind: str, order: Order, guard: Guard) -> None:
    """In every layout they hold what they should, under their own guards."""
    x = with_options(layout, kind)
    plan, buffer, got = lay(x, guard, order)
    expected = {
        "paged": {"alibi_slopes", "sinks", "block_table", "cache_seqlens"},
        "packed": {"cu_seqlens_q", "cu_seqlens_k"},
        "float8": {"q_descale", "k_descale", "v_descale"},
    }
    assert {*got} - {"q", "k", "v"} == expected[kind]
    for storage in plan.storages:
        (name,) = storage.names if len(storage.names) == 1 else ("",)
        if name not in expected[kind]:
            continue
        assert same_bits(got[name], x.option_tensors[name].astype(np.float64)), name
        assert str(got[name].dtype) == f"torch.{storage.dtype}"
        assert got[name].tolist() == tensors.keywords(x)[name].tolist()
        around = np.ones(storage.end - storage.begin, bool)
        itemsize = arena.NUMPY_DTYPES[storage.dtype].itemsize
        view = next(v for v in plan.views if v.name == name)
        for index in np.ndindex(*view.shape):
            at = view.offset + sum(i * s for i, s in zip(index, view.strides, strict=True))
            first = storage.start - storage.begin + at * itemsize
            around[first : first + itemsize] = False
        outside = buffer[storage.begin : storage.end][around]
        assert outside.size >= 2 * arena.GUARD
        if storage.dtype == "float32":
            assert np.isnan(outside.view(np.float32)).all() == (guard == "nan")
        else:
            assert {*outside.view(np.int32)} == {arena.beside(x, name, guard)}


def test_strides_of_options() -> None:
    def strides(layout: Layout, name: str, kind: str = "paged") -> tuple[tuple[int, ...], object]:
        t = lay(with_options(layout, kind))[2][name]
        return t.stride(), t.storage_offset()

    assert strides("contiguous", "block_table") == ((3, 1), 0)
    for layout in LAYOUTS[1:]:
        offset = 1 if layout == "offset" else 0
        assert strides(layout, "block_table") == ((3 + arena.PAD_CHANNELS, 1), offset)
    assert strides("contiguous", "alibi_slopes") == ((1,), 0)
    for layout in ("transposed", "packed", "padded"):
        assert strides(layout, "alibi_slopes") == ((1 + arena.PAD_ROWS,), 0)
    assert strides("strided", "alibi_slopes") == ((2,), 0)
    assert strides("offset", "sinks") == ((1,), 1)
    assert strides("contiguous", "sinks") == ((1,), 0)
    for layout in ("expanded_batch", "expanded_heads"):
        assert strides(layout, "sinks") == ((0,), 0)
        assert strides(layout, "alibi_slopes") == ((1,), 0)
        assert strides(layout, "k_descale", "float8") == ((0, 0), 0)
    assert strides("contiguous", "k_descale", "float8") == ((HKV, 1), 0)
    assert strides("transposed", "q_descale", "float8") == ((HKV * LQ, 1, HKV), 0)
    row = LQ + arena.PAD_CHANNELS
    assert strides("padded", "q_descale", "float8") == ((HKV * row, row, 1), 0)
    assert strides("strided", "q_descale", "float8") == ((2 * HKV * LQ, 2 * LQ, 2), 0)
    for layout in LAYOUTS:
        assert strides(layout, "cache_seqlens") == ((1,), 0)
        assert strides(layout, "cu_seqlens_k", "packed") == ((1,), 0)


def test_what_lies_around_lengths_is_valid_and_differs() -> None:
    x, packed = with_options(), with_options(kind="packed")
    assert arena.beside(x, "block_table", "zeros") == 0
    assert arena.beside(x, "block_table", "nan") == 5  # which no sequence names
    assert arena.beside(x, "cache_seqlens", "nan") == 6
    assert arena.beside(packed, "cu_seqlens_q", "nan") == LQ
    assert arena.beside(packed, "cu_seqlens_k", "nan") == LK
    full = x.with_(pages=Pages(2, 5, np.array([[3, 1, 2], [0, 4, 1]])))
    assert arena.beside(full, "block_table", "nan") == 4


@pytest.mark.parametrize("kind", ["paged", "packed", "float8"])
def test_changed_options_are_named(kind: str) -> None:
    x = with_options("padded", kind)
    plan, buffer, got = lay(x)
    clean = buffer.copy()
    for name in x.option_tensors:
        buffer[:] = clean
        got[name].add_(1)
        assert arena.changed(plan, clean, buffer) == (name,)
        buffer[:] = clean
        storage = next(s for s in plan.storages if s.names == (name,))
        buffer[storage.start - 1] ^= 1  # what lies before it
        assert arena.changed(plan, clean, buffer) == (name,)


def test_plans_are_shared() -> None:
    inputs = make()
    assert arena.plan(arena.key_of(inputs, "bhsd")) is arena.plan(
        arena.key_of(replace(inputs, q=inputs.q + 1), "bhsd")
    )
