"""Inputs: the concrete tensors and options of one attention call.

Tensors are held as float64 arrays whose elements are exactly representable in the dtype
that the kernel will receive, so that the oracle and the bound see what the kernel sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from flashcheck.formats import FORMATS, Array, Bools, Format

Layout = Literal[
    "contiguous",
    "transposed",
    "packed",
    "padded",
    "offset",
    "expanded_batch",
    "expanded_heads",
    "strided",
    "mixed_q",
    "mixed_k",
    "mixed_v",
]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


@dataclass(frozen=True, eq=False)
class Inputs:
    """One call of attention.

    q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv]; `mask` as it is passed (rank 1
    to 4): bool, or float64 holding the additive values; `mask_dtype` is its torch name.
    `layout` says how q, k and v lie in memory:
      contiguous; transposed (stored [B, L, H, D]); packed (q, k and v interleaved in one
      storage where the shapes allow, else transposed); padded (rows and channels longer in
      memory than in the view); offset (a storage offset of one element); expanded_batch,
      expanded_heads (stride 0 in k and v, and in the mask where it does not differ); strided
      (every second channel of longer rows); mixed_q, mixed_k, mixed_v (that one stored
      [B, L, H, D], the others contiguous). The mask follows: its last two axes swapped in
      memory for transposed and packed, its rows longer for padded, every second element for
      strided, and an offset for offset.
    `passed` names options that are passed although they are neutral; `bottom_right` is how
    the kernel under test declares is_causal to be aligned.
    """

    dtype: str
    q: Array
    k: Array
    v: Array
    scale: float | None = None
    is_causal: bool = False
    mask: Bools | Array | None = None
    mask_dtype: str = "bool"
    enable_gqa: bool = False
    layout: Layout = "contiguous"
    passed: frozenset[str] = frozenset()
    bottom_right: bool = False

    @property
    def format(self) -> Format:
        return FORMATS[self.dtype]

    @property
    def shape(self) -> tuple[int, int, int, int, int, int, int]:
        """(B, Hq, Hkv, Lq, Lk, D, Dv)."""
        b, hq, lq, d = self.q.shape
        return b, hq, self.k.shape[1], lq, self.k.shape[2], d, self.v.shape[3]

    @property
    def exact_scale(self) -> float:
        """What multiplies q.k; for None the float64 nearest to 1/sqrt(D)."""
        return 1.0 / math.sqrt(self.q.shape[3]) if self.scale is None else self.scale

    @property
    def heads_per_kv(self) -> int:
        return int(self.q.shape[1] // self.k.shape[1])

    @cached_property
    def visible(self) -> Bools:
        """[B, Hq, Lq, Lk]: which key takes part in which row."""
        b, hq, _, lq, lk, _, _ = self.shape
        seen = np.ones((b, hq, lq, lk), bool)
        if self.mask is not None:
            seen &= self.mask if self.mask.dtype == bool else self.mask != -np.inf
        if self.is_causal:
            shift = lk - lq if self.bottom_right else 0
            seen &= np.arange(lk) <= np.arange(lq)[:, None] + shift
        return seen

    @cached_property
    def bias(self) -> Array | None:
        """[B, Hq, Lq, Lk]: what is added to a score (0 where the key is hidden), or None."""
        if self.mask is None or self.mask.dtype == bool:
            return None
        b, hq, _, lq, lk, _, _ = self.shape
        return np.broadcast_to(np.where(np.isneginf(self.mask), 0.0, self.mask), (b, hq, lq, lk))

    @property
    def unbiased_mask(self) -> Bools | Array | None:
        """The mask with what it hides and nothing else."""
        if self.mask is None or self.mask.dtype == bool:
            return self.mask
        return np.where(np.isneginf(self.mask), -np.inf, 0.0)

    def options(self) -> dict[str, object]:
        """The keyword arguments of the call except attn_mask's tensor: it is `mask`."""
        given: dict[str, object] = {}
        if self.scale is not None or "scale" in self.passed:
            given["scale"] = self.scale
        if self.is_causal or "is_causal" in self.passed:
            given["is_causal"] = self.is_causal
        if self.enable_gqa or "enable_gqa" in self.passed:
            given["enable_gqa"] = self.enable_gqa
        return given

    @property
    def used(self) -> frozenset[str]:
        """The options without which the call would be another."""
        needed = {
            "scale": self.scale is not None,
            "is_causal": self.is_causal,
            "attn_mask": self.mask is not None,
            "enable_gqa": self.enable_gqa,
        }
        return frozenset(name for name, needs in needed.items() if needs)

    def with_(self, **changes: Any) -> Inputs:
        """A copy with some fields replaced (its cached parts are computed afresh)."""
        return replace(self, **changes)
