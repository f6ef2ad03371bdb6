"""Capturing: real calls of torch's scaled_dot_product_attention, saved as examples.

What a model computes is unlike what a search makes up: a few channels are large, one key draws
most rows, padding hides the rest. A captured call is one head of one such call, bit for bit.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from flashcheck import environment
from flashcheck.examples import FOLDER, Example, of_tensors, save
from flashcheck.formats import DTYPES, FORMATS
from flashcheck.inputs import Inputs
from flashcheck.problem import ProblemError
from flashcheck.verdict import Check, Verdict

LIMIT = 32
MAX_BYTES = 64 * 2**20

_ATTENTION = functional.scaled_dot_product_attention
_TARGET = "torch_sdpa"
_GOLDEN = (math.sqrt(5) - 1) / 2
_LARGEST_BIAS = FORMATS["float32"].max_finite / 4
"""Beyond it the contract says nothing (its paragraph A9)."""


@dataclass(slots=True)
class Capture:
    """What was captured so far.

    calls     calls that returned, all together
    paths     the examples, in the order of their calls
    repeated  calls whose head was recorded already
    beyond    calls after `limit` examples
    skipped   why a call was not recorded, and how many
    """

    folder: Path
    calls: int = 0
    paths: list[Path] = field(default_factory=list)
    repeated: int = 0
    beyond: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        n, calls = len(self.paths), self.calls
        text = f"{n} example{'s' * (n != 1)} of {calls} call{'s' * (calls != 1)} in {self.folder}"
        others = ((self.repeated, "repeated"), (self.beyond, "beyond the limit"))
        more = [f"{count} {what}" for count, what in others if count]
        return text + (f" ({', '.join(more)})" if more else "")


@contextlib.contextmanager
def capture(
    folder: str | os.PathLike[str] = FOLDER, *, limit: int = LIMIT, max_bytes: int = MAX_BYTES
) -> Iterator[Capture]:
    """Save what scaled_dot_product_attention is called with inside the `with`, as examples.

    Of each call one batch and head is saved, with the key head that it reads: q [1, 1, Lq, D],
    k [1, 1, Lk, D], v [1, 1, Lk, Dv] and the mask. Which one differs from call to call and is
    the same in every run. At most `limit` different examples of `max_bytes` bytes of tensors in
    all. Results are torch's own; calls are seen on any device, however the function was
    imported, from nn.MultiheadAttention too (whose fused inference path is off meanwhile), but
    not in another thread. Capture a model as it is before torch.compile.

    At the end stderr says how many there are, and a UserWarning counts the calls that no
    example can hold, with the reason: dropout, an attn_mask together with is_causal, dtypes
    that the gate does not take, NaN or infinity, a mask that hides keys by a huge finite number.

    Raises ValueError for a limit below 1, OSError where the folder cannot be written.
    """
    if limit < 1 or max_bytes < 1:
        raise ValueError(f"limit is {limit} and max_bytes {max_bytes}; they must be at least 1")
    found = Capture(Path(folder))
    found.folder.mkdir(parents=True, exist_ok=True)
    with _Recorder(found, limit, max_bytes):
        yield found
    print(f"flashcheck.capture: {found}", file=sys.stderr)
    if not found.calls:
        warnings.warn(
            "flashcheck.capture saw no call of scaled_dot_product_attention: run the model inside "
            "the `with`, in its thread, uncompiled and with torch's attention",
            stacklevel=3,
        )
    elif found.skipped:
        reasons = "; ".join(f"{count} with {why}" for why, count in found.skipped.items())
        warnings.warn(
            f"flashcheck.capture skipped {found.skipped.total()} of {found.calls} calls: {reasons}",
            stacklevel=3,
        )


class _Skip(Exception):
    """A call that is not recorded; the text completes "a call with ..."."""


class _Recorder(TorchFunctionMode):
    """Sees every call of a torch function in its thread, before torch does."""

    def __init__(self, found: Capture, limit: int, max_bytes: int) -> None:
        super().__init__()
        self.found = found
        self.limit = limit
        self.bytes_left = max_bytes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _ATTENTION:
            return self._through(func, *args, **kwargs)
        if func is not functional.multi_head_attention_forward:
            return func(*args, **kwargs)
        # Torch hands this function over as a whole and is silent about what it calls. It finds
        # attention by its name in the module.
        before = functional.scaled_dot_product_attention
        functional.scaled_dot_product_attention = functools.partial(self._through, before)
        try:
            return func(*args, **kwargs)
        finally:
            functional.scaled_dot_product_attention = before

    def _through(self, attention: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        out = attention(*args, **kwargs)
        number = self.found.calls
        self.found.calls += 1
        if len(self.found.paths) >= self.limit:
            self.found.beyond += 1
        else:
            try:
                self._record(number, *args, **kwargs)
            except _Skip as skip:
                self.found.skipped[str(skip)] += 1
        return out

    def _record(self, number: int, *args: Any, **kwargs: Any) -> None:
        head = _one_head(number, *args, **kwargs)
        size = sum(tensor.numel() * tensor.element_size() for tensor in head.tensors)
        if size > self.bytes_left:
            raise _Skip("more tensors than max_bytes leaves room for")
        example = head.example()
        path = self.found.folder / f"{example.id}.json"
        if path in self.found.paths:
            self.found.repeated += 1
            return
        self.found.paths.append(save(example, self.found.folder))
        self.bytes_left -= size


@dataclass(frozen=True, slots=True)
class _Head:
    """One batch and head of a call, still on its device.

    q [Lq, D], k [Lk, D], v [Lk, Dv]; mask [1, 1, Lq or 1, Lk or 1], of rank 2 where it was.
    """

    where: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    is_causal: bool
    scale: float | None

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.q, self.k, self.v, *([] if self.mask is None else [self.mask])]

    def example(self) -> Example:
        """Copy the tensors. Raises _Skip where the contract says nothing about them."""
        try:
            problem, captured = of_tensors(self._inputs())
        except ProblemError as error:
            raise _Skip(f"what no example holds ({error})") from None
        device = str(self.q.device) if self.q.is_cuda else "cpu"
        example = Example(
            problem=problem,
            captured=captured,
            target=_TARGET,
            name=_TARGET,
            device=device,
            property="agreement",
            check=Check("agreement", Verdict.PASS),
            environment=_environment(device),
        )
        text = (
            f"-- captured  {example.dtype}  {example.id} --\n"
            f"{self.where}: a kernel has to agree with the exact result.\n\n"
            f"  {example.sentence}\n\n"
            f"  flashcheck replay {example.id} --kernel TARGET"
        )
        return replace(example, text=text)

    def _inputs(self) -> Inputs:
        mask = None if self.mask is None else _read(self.mask)
        q, k, v = (_read(tensor)[None, None] for tensor in (self.q, self.k, self.v))
        if not all(np.isfinite(x).all() for x in (q, k, v)):
            raise _Skip("NaN or infinity in query, key or value")
        if mask is not None and not (np.isneginf(mask) | (np.abs(mask) < _LARGEST_BIAS)).all():
            raise _Skip("a mask of NaN or huge numbers (hide keys by -inf or a boolean mask)")
        return Inputs(
            dtype=_name(self.q),
            q=q,
            k=k,
            v=v,
            scale=self.scale,
            is_causal=self.is_causal,
            mask=mask,
            mask_dtype="bool" if self.mask is None else _name(self.mask),
        )


def _one_head(
    number: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Head:
    """The head of a call that is to be saved. Raises _Skip where no example can hold it."""
    tensors = [query, key, value, *([] if attn_mask is None else [attn_mask])]
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_nested:
            kind = "nested tensor" if tensor.is_nested else type(tensor).__name__
            raise _Skip(f"a {kind} for a tensor")
    if dropout_p:
        raise _Skip("dropout_p above 0 (call model.eval())")
    if attn_mask is not None and is_causal:
        raise _Skip("attn_mask together with is_causal")
    if query.is_cuda and torch.cuda.is_current_stream_capturing():
        raise _Skip("a CUDA graph being captured (capture before it is)")
    lead = query.shape[:-2]
    if 0 in lead or any(tensor.ndim > query.ndim for tensor in tensors):
        raise _Skip("an empty batch, or more dimensions than query has")
    # Steps of the golden ratio go over all heads evenly, however many layers a model has.
    index = np.unravel_index(int(number * _GOLDEN % 1 * math.prod(lead)), lead)
    at = tuple(map(int, index))
    heads = []
    for tensor in (query, key, value):
        group = lead[-1] // tensor.shape[-3] if enable_gqa else 1
        heads.append(_part(tensor, (*at[:-1], at[-1] // group) if at else at))
    mask = attn_mask
    if mask is not None and mask.ndim != 2:
        mask = _part(torch.atleast_2d(mask), at)[None, None]
    device = query.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        # The call itself converts them, out of sight, but for float64.
        dtype = query.dtype if query.dtype == torch.float64 else torch.get_autocast_dtype(device)
        heads = [tensor.to(dtype) for tensor in heads]
        if mask is not None and mask.dtype != torch.bool:
            mask = mask.to(dtype)
    q, k, v = heads
    if _name(q) not in DTYPES:
        raise _Skip(f"{_name(q)} tensors")
    where = f"Call {number}, head {list(at)} of {list(lead)}"
    return _Head(where, q, k, v, mask, is_causal, None if scale is None else float(scale))


def _part(tensor: torch.Tensor, at: tuple[int, ...]) -> torch.Tensor:
    """The last two axes of `tensor` where its others, broadcast, are at `at`."""
    lead = tensor.shape[:-2]
    indices = at[len(at) - len(lead) :]
    return tensor.detach()[tuple(0 if n == 1 else i for n, i in zip(lead, indices, strict=True))]


def _read(tensor: torch.Tensor) -> NDArray[Any]:
    """A copy as an array of float64 or bool, in which every dtype is exact."""
    try:
        copy = tensor.detach().cpu()
        return np.array((copy if copy.dtype == torch.bool else copy.double()).numpy())
    except RuntimeError:
        raise _Skip("tensors that have no values (vmap, tracing or the meta device)") from None


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@functools.cache
def _environment(device: str) -> dict[str, Any]:
    return environment.collect(device)
