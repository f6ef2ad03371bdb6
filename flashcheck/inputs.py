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

from flashcheck.formats import FLOAT8, FORMATS, Array, Bools, Format

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
    logit more in the normalizer of each row of the head, without a value. num_splits: into how
    many parts the kernel is to split the keys; 1, its neutral value, changes no result.

    places [Lq], queries: the queries at hand stand at these places in a longer call of so many
    (`oracle.rows` makes such parts); None, None is a whole call.

    q_descale, k_descale, v_descale, for float8 only: float32 factors, FlashAttention-3's names.
    The result is that of attention on q q_descale, k k_descale and v v_descale. A factor is one
    number (per tensor), [B, Hkv] (per head; all query heads of a key head share q's), or
    [B, Hkv, N] (per block): N = ceil(L / block), block being the first of `descale_block` for
    q and the second for k and v; with blocks of 1, the default, one for each position. q's may
    have Hq heads as well, and an axis of length 1 repeats.

    Errors: ValueError for a window, softcap, alibi_slopes, sinks or factor that is none of these.
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
    num_splits: int = 1
    places: NDArray[np.int64] | None = None
    queries: int | None = None
    q_descale: Array | None = None
    k_descale: Array | None = None
    v_descale: Array | None = None
    descale_block: tuple[int, int] = (1, 1)

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
        if min(self.descale_block) < 1:
            raise ValueError(
                f"descale_block is {self.descale_block}; a block has 1 position or more"
            )
        for name in ("q", "k", "v"):
            self._check_descale(name)

    def _check_descale(self, of: str) -> None:
        name, given, tensor = f"{of}_descale", getattr(self, f"{of}_descale"), getattr(self, of)
        if given is None:
            return
        if self.dtype not in FLOAT8:
            raise ValueError(f"{name} is for float8 only; the inputs are {self.dtype}")
        if not (np.isfinite(given).all() and (FORMATS["float32"].round(given) == given).all()):
            raise ValueError(f"{name} must hold finite float32 numbers")
        blocks = -(-tensor.shape[2] // self.descale_block[of != "q"])
        allowed = ((1, tensor.shape[0]), (1, self.k.shape[1], tensor.shape[1]), (1, blocks))
        fits = len(given.shape) in (2, 3) and all(
            n in of_axis for n, of_axis in zip(given.shape, allowed, strict=False)
        )
        if not fits and given.size != 1:
            b, heads = tensor.shape[0], self.k.shape[1]
            raise ValueError(
                f"{name} has shape {list(given.shape)}; it must be a number, [B, Hkv], here "
                f"[{b}, {heads}], or [B, Hkv, blocks], here [{b}, {heads}, {blocks}]"
            )

    @property
    def placed(self) -> bool:
        """Whether a score depends on where its query and its key stand, is_causal apart."""
        return self.window != (-1, -1) or self.alibi_slopes is not None

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of the factors that are given."""
        names = ("q_descale", "k_descale", "v_descale")
        return tuple(name for name in names if getattr(self, name) is not None)

    def descale(self, of: Literal["q", "k", "v"]) -> Array:
        """The factor of each row of q, k or v, to be multiplied with it: [B, H, L, 1] or ones.

        H is Hq for q and Hkv for k and v; an axis on which the factor is constant may be 1.
        """
        given: Array | None = getattr(self, f"{of}_descale")
        if given is None or given.size == 1:
            return np.full((1, 1, 1, 1), 1.0 if given is None else given.item())
        if given.ndim == 2:
            given = given[..., None]
        tensor: Array = getattr(self, of)
        if given.shape[2] != 1:
            given = given[:, :, np.arange(tensor.shape[2]) // self.descale_block[of != "q"]]
        if given.shape[1] not in (1, tensor.shape[1]):
            given = np.repeat(given, self.heads_per_kv, axis=1)
        return given[..., None]

    @cached_property
    def exact_q(self) -> Array:
        """q times its factor, exactly: 4 bits times 24 fit float64."""
        return self.q if self.q_descale is None else self.q * self.descale("q")

    @cached_property
    def exact_k(self) -> Array:
        """k times its factor, exactly."""
        return self.k if self.k_descale is None else self.k * self.descale("k")

    @cached_property
    def exact_v(self) -> Array:
        """v times its factor, exactly."""
        return self.v if self.v_descale is None else self.v * self.descale("v")

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
        """The keyword arguments of the call except attn_mask's tensor and the factors of float8.

        alibi_slopes and sinks are tuples here, of Hq numbers: a kernel gets float32 tensors.
        """
        values: dict[str, object] = {
            "scale": self.scale, "is_causal": self.is_causal, "enable_gqa": self.enable_gqa,
            "window_size": self.window, "softcap": self.softcap,
            "alibi_slopes": _floats(self.alibi_slopes), "sinks": _floats(self.sinks),
            "num_splits": self.num_splits,
        }  # fmt: skip
        wanted = self.used | self.passed
        return {name: value for name, value in values.items() if name in wanted}

    @property
    def used(self) -> frozenset[str]:
        """The options without which the call would be another."""
        needed = {
            "scale": self.scale is not None,
            "is_causal": self.is_causal,
            "attn_mask": self.mask is not None,
            "enable_gqa": self.enable_gqa,
            "window_size": self.window != (-1, -1),
            "softcap": self.softcap != 0,
            "alibi_slopes": self.alibi_slopes is not None,
            "sinks": self.sinks is not None,
            "num_splits": self.num_splits != 1,
        }
        return frozenset(name for name, needs in needed.items() if needs)

    def with_(self, **changes: Any) -> Inputs:
        """A copy with some fields replaced (its cached parts are computed afresh)."""
        return replace(self, **changes)


def _floats(values: Array | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(map(float, values))
