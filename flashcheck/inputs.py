"""Inputs: the concrete tensors and options of one attention call.

Tensors are held as float64 arrays whose elements are exactly representable in the dtype
that the kernel will receive, so that the oracle and the bound see what the kernel sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

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
PER_HEAD = ("alibi_slopes", "sinks")
"""Options that are a float32 number for each query head."""

DESCALES = ("q_descale", "k_descale", "v_descale")
"""Options that are float32 factors of float8 tensors."""

LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "block_table", "cache_seqlens")
"""Options that are int32 tensors: where sequences begin, end and lie."""

LAYOUTS: tuple[Layout, ...] = get_args(Layout)


class Span(NamedTuple):
    """[B or 1, Lq] each: the first key of the query's sequence, the one after its last, the
    query's place in it, and the sequence's Lk - Lq."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]
    place: NDArray[np.int64]
    shift: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pages:
    """A pool of pages, of `size` keys each, `count` in all.

    table [B, n]: the page that holds keys i * size to i * size + size - 1 of a sequence, at i.
    Pages that no sequence names are unused.
    """

    size: int
    count: int
    table: NDArray[np.int64]


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
      strided, and an offset for offset. So do options of float32: a vector is a column of a matrix
      for transposed, packed and padded, and an axis along which all numbers are the same has stride
      0 for both expanded. block_table is the first columns of a wider one for all but contiguous,
      and has an offset for offset; lengths are contiguous.
    `passed` names options that are passed although they are neutral; `bottom_right` is how
    the kernel under test declares is_causal to be aligned.

    window (left, right): query i sees keys i + s - left to i + s + right, s = Lk - Lq; -1 is
    unbounded on that side. softcap c: a scaled score t becomes c tanh(t / c); 0 is off.
    alibi_slopes [Hq], float32 values: adds -slope |i + s - j|. sinks [Hq], float32 values: a
    logit more in the normalizer of each row of the head, without a value. num_splits: into how
    many parts the kernel is to split the keys; 1, its neutral value, changes no result.

    seqlens_q, seqlens_k, both: a packed batch. B is 1, and the sequences, of so many queries and
    keys each, lie one after another along L; each is attention by itself, with its own i, j
    and s. cu_seqlens and max_seqlen are made of them, the latter longer by `longest` for q and k.
    seqlens_k and pages: a paged cache of B sequences, of which b has seqlens_k[b] keys. k and v
    [B, Hkv, Lk, D] hold what its pages hold, Lk = pages a sequence times their size; the rest of
    the last page, and pages beyond it, are not seen.

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
    seqlens_q: tuple[int, ...] | None = None
    seqlens_k: tuple[int, ...] | None = None
    longest: tuple[int, int] = (0, 0)
    pages: Pages | None = None
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
        self._check_sequences()
        if min(self.descale_block) < 1:
            raise ValueError(
                f"descale_block is {self.descale_block}; a block has 1 position or more"
            )
        for name in ("q", "k", "v"):
            self._check_descale(name)

    def _check_sequences(self) -> None:
        """Raises ValueError for sequences that do not add up, and for what they exclude."""
        b, _, _, lq, lk, _, _ = self.shape
        if self.seqlens_k is None:
            if self.seqlens_q is not None or self.pages is not None:
                raise ValueError("seqlens_q and pages each need seqlens_k")
            return
        kind = "a packed batch" if self.pages is None else "a paged cache"
        if self.mask is not None:
            raise ValueError(f"attn_mask and {kind} exclude each other")
        if self.pages is None:
            if self.seqlens_q is None or len(self.seqlens_q) != len(self.seqlens_k):
                raise ValueError("a packed batch needs seqlens_q and seqlens_k of one length")
            if b != 1:
                raise ValueError(f"a packed batch has B = 1, and q has {b}")
            lengths = (sum(self.seqlens_q), sum(self.seqlens_k))
            if lengths != (lq, lk) or min(*self.seqlens_q, *self.seqlens_k) < 0:
                raise ValueError(f"the sequences have {lengths} queries and keys, not {lq, lk}")
            return
        if self.seqlens_q is not None:
            raise ValueError("cu_seqlens_q and block_table exclude each other")
        if len(self.seqlens_k) != b or not all(0 <= n <= lk for n in self.seqlens_k):
            raise ValueError(f"cache_seqlens is {self.seqlens_k}; it must be {b} of 0 to {lk}")
        if self.pages.table.shape != (b, lk // self.pages.size) or lk % self.pages.size:
            raise ValueError(f"block_table does not hold {lk} keys in pages of {self.pages.size}")

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
        """Whether a window or ALiBi makes scores depend on where queries and keys stand."""
        return self.window != (-1, -1) or self.alibi_slopes is not None

    def unplaced(self) -> Inputs:
        """A call on the same tensors in which nothing but is_causal and the mask depends on
        places: without window, ALiBi, sequences and factors. These inputs where they have none."""
        if not (self.placed or self.factors) and self.seqlens_k is None:
            return self
        return self.unscaled().with_(
            window=(-1, -1), alibi_slopes=None, seqlens_q=None, seqlens_k=None, longest=(0, 0),
            pages=None,
        )  # fmt: skip

    def unscaled(self) -> Inputs:
        """A call on the same tensors without float8's factors."""
        return self.with_(**dict.fromkeys(DESCALES)) if self.factors else self

    @cached_property
    def span(self) -> Span:
        """Which keys are those of each query's sequence, and where in it the query stands."""
        _, _, _, lq, lk, _, _ = self.shape
        if self.seqlens_k is None:
            every = np.zeros((1, lq), np.int64)
            return Span(every, every + lk, self.own[None], every + self.shift)
        keys = np.array(self.seqlens_k, np.int64)
        if self.seqlens_q is None:
            n = np.broadcast_to(keys[:, None], (len(keys), lq))
            return Span(np.zeros_like(n), n, np.broadcast_to(self.own, n.shape), n - lq)
        queries = np.array(self.seqlens_q, np.int64)
        first = [np.concatenate([[0], np.cumsum(n)[:-1]]) for n in (queries, keys)]
        of_query = (first[1], first[1] + keys, -first[0], keys - queries)
        start, end, place, shift = (np.repeat(n, queries)[None] for n in of_query)
        return Span(start, end, place + self.own, shift)

    @property
    def factors(self) -> tuple[str, ...]:
        """The names of the factors that are given."""
        return tuple(name for name in DESCALES if getattr(self, name) is not None)

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
        first, last, place, shift = (n[:, None, :, None] for n in self.span)
        keys = np.arange(lk)
        if self.seqlens_k is not None:
            seen &= (keys >= first) & (keys < last)
        if self.is_causal:
            seen &= keys - first <= place + (shift if self.bottom_right else 0)
        left, right = self.window
        if left >= 0:
            seen &= self.offsets >= -left
        if right >= 0:
            seen &= self.offsets <= right
        return seen

    @property
    def offsets(self) -> NDArray[np.int64]:
        """[B or 1, 1, Lq, Lk]: j - (i + Lk - Lq): how far key j lies right of query i's place."""
        first, _, place, shift = (n[:, None, :, None] for n in self.span)
        return np.asarray(np.arange(self.k.shape[2]) - (first + place + shift))

    @cached_property
    def bias(self) -> Array | None:
        """[B, Hq, Lq, Lk]: what the mask adds (0 where it hides the key), or None."""
        if self.mask is None or self.mask.dtype == bool:
            return None
        b, hq, _, lq, lk, _, _ = self.shape
        return np.broadcast_to(np.where(np.isneginf(self.mask), 0.0, self.mask), (b, hq, lq, lk))

    @cached_property
    def alibi(self) -> Array | None:
        """[B or 1, Hq, Lq, Lk]: what alibi_slopes add to every score, exactly, or None."""
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
        """The keyword arguments of the call except attn_mask's tensor.

        What a kernel gets as a tensor, of float32 or int32, are nested tuples here.
        """
        values: dict[str, object] = {
            "scale": self.scale, "is_causal": self.is_causal, "enable_gqa": self.enable_gqa,
            "window_size": self.window, "softcap": self.softcap,
            **{name: _nested(getattr(self, name)) for name in (*PER_HEAD, *DESCALES)},
            "num_splits": self.num_splits, **self._lengths(),
        }  # fmt: skip
        wanted = self.used | self.passed | self._lengths().keys()
        return {name: value for name, value in values.items() if name in wanted}

    @cached_property
    def option_tensors(self) -> dict[str, NDArray[Any]]:
        """The options that a kernel gets as tensors, of float32 or, those of LENGTHS, of int32."""
        given = {name: getattr(self, name) for name in (*PER_HEAD, *DESCALES)}
        given |= {n: np.array(x, np.int64) for n, x in self._lengths().items() if n in LENGTHS}
        return {name: values for name, values in given.items() if values is not None}

    def _lengths(self) -> dict[str, object]:
        """The options that say where sequences begin and end, as nested tuples."""
        if self.seqlens_k is None:
            return {}
        if self.pages is not None:
            table = tuple(tuple(map(int, row)) for row in self.pages.table)
            return {"block_table": table, "cache_seqlens": self.seqlens_k}
        given: dict[str, object] = {}
        for name, lengths, more in (
            ("q", self.seqlens_q, self.longest[0]), ("k", self.seqlens_k, self.longest[1])
        ):  # fmt: skip
            assert lengths is not None
            given[f"cu_seqlens_{name}"] = (0, *map(int, np.cumsum(lengths)))
            given[f"max_seqlen_{name}"] = max(lengths, default=0) + more
        return given

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
            **dict.fromkeys(self.factors, True),
            # The longest lengths are passed where they are named.
            **{name: not name.startswith("max_") for name in self._lengths()},
        }
        return frozenset(name for name, needs in needed.items() if needs)

    def with_(self, **changes: Any) -> Inputs:
        """A copy with some fields replaced (its cached parts are computed afresh).

        Sequences on shared pages that no longer hold the same get pages of their own.
        """
        made = replace(self, **changes)
        return made if made.pages is None or {"k", "v"}.isdisjoint(changes) else made._parted()

    def _parted(self) -> Inputs:
        assert self.pages is not None
        assert self.seqlens_k is not None
        table, size = self.pages.table, self.pages.size
        used = np.arange(table.shape[1]) < -(-np.array(self.seqlens_k)[:, None] // size)
        pages, first, whose = np.unique(table[used], return_index=True, return_inverse=True)
        for tensor in (self.k, self.v):
            held = tensor.swapaxes(1, 2).reshape(*table.shape, size, *tensor.shape[1::2])[used]
            if not np.array_equal(held, held[first][whose], equal_nan=True):
                own = np.arange(table.size).reshape(table.shape)
                unused = self.pages.count - len(pages)
                return replace(self, pages=Pages(size, table.size + unused, own))
        return self


def _nested(values: Array | None) -> object:
    """An array as nested tuples, which are equal where their numbers are."""
    if values is None or values.ndim == 0:
        return None if values is None else float(values)
    return tuple(_nested(part) for part in values)
