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
from numpy.typing import NDArray

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

    window (left, right): query i sees keys i + s - left to i + s + right, s = Lk - Lq; -1 is
    unbounded on that side. softcap c: a scaled score t becomes c tanh(t / c); 0 is off.
    alibi_slopes [Hq], float32 values: adds -slope |i + s - j|. sinks [Hq], float32 values: a
    logit more in the normalizer of each row of the head, without a value.

    places [Lq], queries: the queries at hand stand at these places in a longer call of so many
    (`oracle.rows` makes such parts); None, None is a whole call.

    Errors: ValueError for a window, softcap, alibi_slopes or sinks that is none of these.
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
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi_slopes: Array | None = None
    sinks: Array | None = None
    places: NDArray[np.int64] | None = None
    queries: int | None = None

    def __post_init__(self) -> None:
        if len(self.window) != 2 or min(self.window) < -1:
            raise ValueError(f"window is {self.window}; it must be (left, right), each -1 or more")
        if not 0 <= self.softcap < math.inf:
            raise ValueError(f"softcap is {self.softcap}; it must be finite, and 0 or more")
        heads = self.q.shape[1]
        for name, given in (("alibi_slopes", self.alibi_slopes), ("sinks", self.sinks)):
            if given is not None and given.shape != (heads,):
                raise ValueError(
                    f"{name} has shape {list(given.shape)}; it must be [Hq], here [{heads}]"
                )
            if given is not None and not np.isfinite(given).all():
                raise ValueError(f"{name} holds NaN or infinity; leave the option out instead")

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

    @property
    def own(self) -> NDArray[np.int64]:
        """[Lq]: the place of each query in the call."""
        return np.arange(self.q.shape[2]) if self.places is None else self.places

    @property
    def shift(self) -> int:
        """Lk - Lq of the call: by how much a place moves where the ends are aligned."""
        return int(self.k.shape[2]) - (self.q.shape[2] if self.queries is None else self.queries)

    @cached_property
    def visible(self) -> Bools:
        """[B, Hq, Lq, Lk]: which key takes part in which row."""
        b, hq, _, lq, lk, _, _ = self.shape
        seen = np.ones((b, hq, lq, lk), bool)
        if self.mask is not None:
            seen &= self.mask if self.mask.dtype == bool else self.mask != -np.inf
        if self.is_causal:
            shift = self.shift if self.bottom_right else 0
            seen &= np.arange(lk) <= self.own[:, None] + shift
        left, right = self.window
        if left >= 0:
            seen &= self.offsets >= -left
        if right >= 0:
            seen &= self.offsets <= right
        return seen

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[Lq, Lk]: j - (i + Lk - Lq), how far key j lies right of query i's own place."""
        return np.asarray(np.arange(self.k.shape[2]) - (self.own + self.shift)[:, None])

    @cached_property
    def bias(self) -> Array | None:
        """[B, Hq, Lq, Lk]: what the mask adds (0 where it hides the key), or None."""
        if self.mask is None or self.mask.dtype == bool:
            return None
        b, hq, _, lq, lk, _, _ = self.shape
        return np.broadcast_to(np.where(np.isneginf(self.mask), 0.0, self.mask), (b, hq, lq, lk))

    @cached_property
    def alibi(self) -> Array | None:
        """[1, Hq, Lq, Lk]: what alibi_slopes add to every score, exactly, or None."""
        if self.alibi_slopes is None:
            return None
        # 24 bits of the slope times fewer than 2^29 keys fit float64.
        alibi: Array = self.alibi_slopes[None, :, None, None] * -np.abs(self.offsets)
        return alibi

    @property
    def unbiased_mask(self) -> Bools | Array | None:
        """The mask with what it hides and nothing else."""
        if self.mask is None or self.mask.dtype == bool:
            return self.mask
        return np.where(np.isneginf(self.mask), -np.inf, 0.0)

    def options(self) -> dict[str, object]:
        """The keyword arguments of the call except attn_mask's tensor: it is `mask`.

        Raises NotImplementedError for options that no kernel is passed yet.
        """
        set_here = {
            "window": self.window != (-1, -1),
            "softcap": self.softcap != 0,
            "alibi_slopes": self.alibi_slopes is not None,
            "sinks": self.sinks is not None,
        }
        if any(set_here.values()):
            names = ", ".join(name for name, is_set in set_here.items() if is_set)
            raise NotImplementedError(
                f"this version cannot pass {names} to a kernel: compare its result with "
                "flashcheck.oracle and flashcheck.bounds, or leave the option out"
            )
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
