"""Hypothesis strategies for problems: families of adversarial inputs.

A problem costs 19 draws, and one for each further option that the kernel takes. Each is an index
into a list whose first entry is the simplest, so that shrinking lands on the simplest problem: one
query, one key, equal scores, V all ones. Everything after the draws is a pure function of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from flashcheck.families import SCORES, VALUES, filled
from flashcheck.fills import Fill
from flashcheck.inputs import DESCALES as FACTORS
from flashcheck.inputs import LAYOUTS, Layout
from flashcheck.kernel import SDPA_OPTIONS
from flashcheck.masks import HIDES, BiasDtype, Hides, Kind, Mask
from flashcheck.problem import DescalePer, Problem
from flashcheck.sequences import PACKINGS, PAGES, pack, paged

HEAD_DIMS: tuple[int, ...] = (
    16, 1, 2, 3, 8, 24, 32, 33, 40, 64, 72, 80, 96, 100, 127, 128, 132, 136, 160, 192, 255, 256,
)  # fmt: skip
"""Head sizes that are tried, the one most kernels take first: up to every power of two, and past
it, multiples of 16, of 8 and of 4, and odd ones, since kernels take each up to 128 and above by
another path."""

GRIDS: tuple[tuple[int, int, int], ...] = (
    (1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 2, 2), (1, 3, 3), (3, 2, 2), (2, 8, 8), (5, 7, 7),
    (1, 2, 1), (1, 4, 2), (2, 4, 2), (1, 6, 2), (2, 6, 3), (1, 8, 1), (1, 8, 2), (2, 12, 4),
    (17, 8, 8),
)  # fmt: skip
"""(batch, query heads, key heads)."""

LENGTHS: tuple[int, ...] = (
    *range(1, 21), 23, 24, 25, 31, 32, 33, 37, 47, 48, 49, 50, 63, 64, 65, 66, 77, 80, 95, 96, 97,
    100, 111, 112, 127, 128, 129, 130, 144, 160, 161, 191, 192, 193, 255, 256, 257, 300, 320, 448,
    511, 512, 513,
)  # fmt: skip
"""Sequence lengths: all small ones, then block edges of every usual block size and one off."""

MAGNITUDES: tuple[float, ...] = (
    1.0, 0.0, 0.02, 0.25, 3.0, 5.0, 6.0, 9.0, 12.0, 20.0, 40.0, 80.0, 110.0, 200.0, 1e3, 1e4, 1e5,
)  # fmt: skip
"""Sizes of score differences, in nats."""

SCALES: tuple[float | None, ...] = (
    None, None, None, None, 1.0, 0.5, 0.125, 2.0**-10, 0.0, -1.0, -0.25, 3.0, 0.0883883461356163,
    -0.02, 0.7071067690849304, -3.0, 0.037, 2.0**-20, 1.7, 0.01, -0.1,
)  # fmt: skip

MASK_FORMS: tuple[tuple[Kind, BiasDtype, int, str], ...] = (
    ("bool", "float32", 4, "qk"), ("bool", "float32", 2, "qk"), ("bool", "float32", 4, "bqk"),
    ("bool", "float32", 4, "hqk"), ("bool", "float32", 4, "bhqk"), ("bool", "float32", 4, "bk"),
    ("bool", "float32", 4, "k"), ("bool", "float32", 2, "k"), ("bool", "float32", 4, "bq"),
    ("bool", "float32", 3, "qk"), ("bool", "float32", 1, "k"), ("additive", "query", 4, "qk"),
    ("additive", "query", 2, "qk"), ("additive", "query", 4, "bhqk"),
    ("additive", "query", 4, "bk"), ("additive", "query", 4, "q"),
    ("additive", "float32", 4, "qk"), ("additive", "float32", 2, "qk"),
    ("additive", "float32", 4, "hqk"), ("additive", "float32", 4, "bqk"),
    ("additive", "float32", 4, "hq"),
)  # fmt: skip
"""(kind, dtype, rank, the axes over which it differs: batch, heads, queries, keys)."""


WINDOWS: tuple[tuple[int, int], ...] = (
    *[(-1, -1)] * 5, (0, 0), (3, 0), (-1, 0), (16, 16), (2, -1), (31, 0), (-1, 5), (1, 2), (0, -1),
    (15, 15), (63, 1), (7, 40), (0, 3), (64, 64), (128, 0),
)  # fmt: skip
"""(left, right); a quarter has none."""

SOFTCAPS: tuple[float, ...] = (
    *[0.0] * 4, 30.0, 50.0, 1.0, 5.0, 0.5, 15.0, 2.0, 100.0, 20.0, 0.0625,
)  # fmt: skip

PER_HEAD: dict[str, tuple[Fill | None, ...]] = {
    "alibi_slopes": (
        *[None] * 4, Fill(level=0.5), Fill("stairs", level=0.0625, base=0.0625),
        Fill("cycle", level=0.25, base=2.0**-8, period=2), Fill(noise="positive", spread=0.25),
        Fill(level=2.0), Fill(noise="normal", spread=0.5), Fill("spike", level=1.0, at=-1),
        Fill(level=2.0**-8), Fill("step", level=8.0, at=1), Fill(noise="positive", spread=0.01),
    ),
    "sinks": (
        *[None] * 4, Fill(), Fill(noise="normal", spread=1.0), Fill("stairs", level=1.0, base=-2.0),
        Fill(level=10.0), Fill(noise="normal", spread=8.0), Fill("spike", level=30.0, at=-1),
        Fill(level=-10.0), Fill("alternate", level=80.0), Fill(level=-1e4), Fill(level=150.0),
    ),
}  # fmt: skip
"""One number for each head."""

SPLITS: tuple[int, ...] = (1, 1, 2, 3, 4, 5, 8, 7, 16, 2, 32, 3, 64, 600)
"""Into how many parts the keys are split, beyond their number too."""

DESCALES: tuple[tuple[DescalePer, Fill] | None, ...] = (
    None, None, ("head", Fill(noise="positive", spread=0.5)), ("tensor", Fill(level=0.5)),
    ("head", Fill("spike", level=4.0, base=0.25, at=-1)), ("tensor", Fill(level=0.3)),
    ("block", Fill(noise="positive", spread=0.5)), ("block", Fill("stairs", level=0.25, base=0.5)),
    ("head", Fill(noise="positive", spread=2.0**-6)), ("block", Fill("spike", level=3.0, base=0.7)),
)  # fmt: skip
"""Factors of float8 tensors: each of q, k and v draws noise of its own."""

SQUARES = 9
"""Places of Lq's draw that give one query, or as many queries as keys."""

FEW = 5
"""Queries below which a problem that is too large has fewer heads instead."""

UNMASKED = 6
"""Places of the mask's draw that give none: a third of all."""

WORK = 400_000


BIASES: tuple[Fill, ...] = (
    Fill(), Fill(noise="normal", spread=1.0), Fill(noise="normal", spread=64.0),
    Fill(noise="normal", spread=8.0), Fill(level=-1e4, noise="normal", spread=4.0),
    Fill(level=-65504.0), Fill(noise="normal", spread=1000.0),
    Fill("cycle", level=-1e4, base=0.0, period=2), Fill(), Fill("stairs", level=-0.5),
    Fill(level=3e4), Fill(level=-3e4, noise="normal", spread=4.0),
)  # fmt: skip
"""What an additive mask adds where it hides nothing. A finite value hides nothing, however
large: kernels that take -1e4 or the smallest finite number for -inf are wrong."""


@dataclass(frozen=True, slots=True)
class Space:
    """The problems that one kernel takes in one dtype: what probing found.

    mask_forms are (kind, dtype, rank); `causal_square` restricts is_causal to Lq = Lk; `aligned`
    says that is_causal has the alignment of windows and ALiBi, at the ends: where it has not,
    they are combined with Lq = Lk only. `dense` says that it takes calls that are neither a packed
    batch nor on a paged cache, and `pages` the sizes of pages. `descale_block`: see `Kernel`.
    `backward` says that the kernel brings a backward, whose gradients are to be checked.
    `max_heads` bounds batch * heads of a problem, `work` batch * heads * len_q * len_k *
    (dim + dim_v).
    """

    dtype: str = "float32"
    options: frozenset[str] = frozenset(SDPA_OPTIONS)
    head_dims: tuple[int, ...] = HEAD_DIMS
    dim_v_differs: bool = True
    mask_forms: frozenset[tuple[str, str, int]] = frozenset(
        (kind, dtype, rank) for kind, dtype, rank, _ in MASK_FORMS
    )
    positive_scale: bool = False
    scale_none: bool = True
    empty_keys: bool = True
    causal_square: bool = False
    aligned: bool = False
    dense: bool = True
    descale_block: tuple[int, int] | None = None
    pages: tuple[int, ...] = tuple(sorted({*PAGES} - {0}))
    backward: bool = False
    max_length: int = 513
    max_heads: int = 256
    work: int = WORK
    layouts: tuple[Layout, ...] = LAYOUTS
    seeds: int = field(default=1 << 16)

    def takes(self, p: Problem) -> bool:
        """Whether a problem that was made from one of the space is still of it."""
        return not self.why_not(p)

    def why_not(self, p: Problem) -> str:
        """Why a problem, with options that the space has, is not of it; after the kernel's name.

        Its size is no reason. "" where it is.
        """
        if not p.seqlens_k and not self.dense:
            return "does not take plain calls, without cu_seqlens_q or block_table"
        if p.page and p.page not in self.pages:
            return f"does not take pages of {p.page} keys, or was not tried with them"
        if p.mask is not None and p.is_causal:
            return "is never asked attn_mask together with is_causal, which cannot be declared yet"
        if p.mask is not None and self.mask_forms.isdisjoint(forms_of(p)):
            return "does not take such a mask"
        if p.dim not in self.head_dims or (p.dim_v != p.dim and not self.dim_v_differs):
            return "does not take the head size, or was not tried with it"
        if p.scale is None and not self.scale_none:
            return "does not take scale=None"
        if p.scale is not None and p.scale <= 0 and self.positive_scale:
            return "is declared for positive scales only"
        if p.len_k == 0 and not self.empty_keys:
            return "does not take Lk = 0"
        if p.is_causal and self.causal_square and not _square(p):
            return "takes is_causal with Lq = Lk only"
        together = "" if self.aligned else misaligned(p)
        if together:
            return (
                f"does not declare how {together} go together where Lq is not Lk: "
                "causal_alignment='bottom_right' would"
            )
        blocked = [n for n in FACTORS if getattr(p, n) is not None and p.descale_per == "block"]
        if blocked and p.descale_block != self.descale_block:
            return (
                f"does not declare that {' and '.join(blocked)} are of such blocks: "
                f"descale_block={p.descale_block} would"
            )
        return ""


def forms_of(p: Problem) -> frozenset[tuple[str, str, int]]:
    """(kind, dtype, rank) of the problem's mask; in float32 there are two names for one form."""
    if p.mask is None:
        return frozenset()
    dtypes = {"float32"} if p.mask.kind == "bool" else {p.mask.dtype}
    dtypes |= {"float32", "query"} if p.mask.kind == "additive" and p.dtype == "float32" else set()
    return frozenset((p.mask.kind, dtype, p.mask.rank) for dtype in dtypes)


def misaligned(p: Problem) -> str:
    """The options that are aligned differently where Lq is not Lk, as it is here; else ""."""
    if not (p.is_causal and p.placed) or _square(p):
        return ""
    placing = {"window_size": p.window != (-1, -1), "alibi_slopes": p.alibi_slopes is not None}
    return " and ".join(["is_causal", *(name for name, there in placing.items() if there)])


def _square(p: Problem) -> bool:
    queries, keys = p.seqlens_q or (p.len_q,), p.seqlens_k or (p.len_k,)
    return queries == keys if p.seqlens_q else {*keys} == {*queries}


SIZES: tuple[float, ...] = (*[1.0] * 8, 2.0**-8, 2.0**6, 2.0**-14, 2.0**-22, 0.0)
NOISES: tuple[float, ...] = (0.0, 1.0, 0.5, 2.0, 4.0)


def problems(space: Space = Space()) -> st.SearchStrategy[Problem]:
    """Problems of `space`, simplest first.

    >>> from hypothesis import find
    >>> print(str(find(problems(), lambda problem: True)).split("; q")[0])
    1 query, 1 key, head size 16, float32, no mask
    """
    # Each place draws from a range of its own. Hypothesis repeats every example five times
    # with one draw copied over another that has the same label; here, where no two draws
    # mean the same, that would make five problems in six a near copy of the sixth.
    places = [
        st.sampled_from(range(i * _APART, i * _APART + n)) if n else st.just(i * _APART)
        for i, n in enumerate(_counts(space))
    ]
    return st.tuples(*places).map(
        lambda draws: _assemble(space, tuple(d - i * _APART for i, d in enumerate(draws)))
    )


def drawn(space: Space, count: int, seed: int) -> tuple[Problem, ...]:
    """About `count` problems of `space`, the same for the same seed and version of Hypothesis."""
    found: list[Problem] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count, phases=(Phase.generate,), database=None, deadline=None,
        derandomize=False, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(problems(space))
    def collect(problem: Problem) -> None:
        found.append(problem)

    collect()
    return tuple(found)


_APART = 1 << 24


def _counts(space: Space) -> tuple[int, ...]:
    lengths = _upto(space.max_length)
    return (
        len(_grids(space)),
        len(lengths) + SQUARES,  # one query, then SQUARES - 1 draws for Lq = Lk
        len(lengths) + (1 if space.empty_keys else 0),
        len(space.head_dims),
        2 * len(space.head_dims) if space.dim_v_differs else 1,  # half of them: Dv = D
        len(SCORES),
        len(MAGNITUDES),
        32,
        len(NOISES),
        len(VALUES),
        len(SIZES),
        32,
        space.seeds,
        len(SCALES) if "scale" in space.options else 1,
        2 if "is_causal" in space.options else 1,
        len(HIDES) + UNMASKED if "attn_mask" in space.options and space.mask_forms else 1,
        24,
        len(_forms(space)) or 1,
        2 * len(space.layouts),
        *(len(choices) * (name in space.options) for name, choices in _FURTHER.items()),
        len(DESCALES) * any(name in space.options for name in FACTORS),
    )


_FURTHER: dict[str, Sequence[Any]] = {
    "window_size": WINDOWS, "softcap": SOFTCAPS, **PER_HEAD, "num_splits": SPLITS,
    "cu_seqlens_q": PACKINGS, "block_table": PAGES,
}  # fmt: skip
"""What is drawn for options that few kernels have: where a kernel lacks one, nothing is."""


_PACKED = tuple(how for how in PACKINGS if how != "none")
_PAGED = tuple(size for size in PAGES if size)


def _upto(longest: int) -> tuple[int, ...]:
    return tuple(n for n in LENGTHS if n <= longest)


def _grids(space: Space) -> Sequence[tuple[int, int, int]]:
    grids = [g for g in GRIDS if g[1] == g[2] or "enable_gqa" in space.options]
    return [g for g in grids if g[0] * g[1] <= space.max_heads]


def _forms(space: Space) -> Sequence[tuple[Kind, BiasDtype, int, str]]:
    return [f for f in MASK_FORMS if f[:3] in space.mask_forms]


def _assemble(space: Space, draws: tuple[int, ...]) -> Problem:
    (grid, len_q, len_k, dim, dim_v, scores, size, at, noise, values, v_size, v_at, seed,
     scale, causal, mask, amount, form, layout, *further) = draws  # fmt: skip
    *further, descale = further
    window, softcap, alibi_slopes, sinks, num_splits, packing, page = (
        choices[i] for choices, i in zip(_FURTHER.values(), further, strict=True)
    )
    lengths = _upto(space.max_length)
    batch, heads, kv_heads = _grids(space)[grid]
    keys = 0 if len_k == len(lengths) else lengths[len_k]
    d = space.head_dims[dim]
    dv = d if dim_v < len(space.head_dims) else space.head_dims[dim_v - len(space.head_dims)]
    square = 1 <= len_q < SQUARES
    queries = max(keys, 1) if square else lengths[max(len_q - SQUARES, 0)]
    # Keep the problem small: fewer queries first, then fewer heads.
    cost = (d + dv) * max(keys, 1)
    many = batch * heads > 16 and batch * heads * cost <= space.work
    if batch * heads * min(queries, FEW) * cost > space.work and not many:
        batch, heads, kv_heads = (1, 1, 1) if heads == kv_heads else (1, heads // kv_heads, 1)
    queries = max(1, min(queries, space.work // (cost * batch * heads)))
    placed = window != (-1, -1) or alibi_slopes is not None
    if causal and placed and not space.aligned and keys and queries > 1:
        keys = queries = min(keys, queries)
    is_causal = bool(causal) and not (
        (space.causal_square or (placed and not space.aligned)) and queries != keys
    )
    p = Problem(
        dtype=space.dtype, batch=batch, heads=heads, kv_heads=kv_heads, len_q=queries,
        len_k=keys, dim=d, dim_v=dv, seed=seed, scale=_scale(space, scale), is_causal=is_causal,
        mask=None if is_causal else _mask(space, mask, amount, form, keys, seed),
        window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        num_splits=num_splits,
        layout=space.layouts[max(0, layout - len(space.layouts))],
        scores=list(SCORES)[scores], values=list(VALUES)[values],
    )  # fmt: skip
    if packing == "none" and page == 0 and not space.dense:
        packing, page = _PACKED[seed % len(_PACKED)], _PAGED[seed % len(_PAGED)]
    pages = [size for size in PAGES if size in space.pages]
    if packing != "none" and "cu_seqlens_q" in space.options:
        names: Any = "".join(x for x in "qk" if f"max_seqlen_{x}" in space.options)
        p = replace(pack(p, packing, space.aligned), names_longest=names)
    elif page and pages:
        p = paged(p, page if page in pages else pages[seed % len(pages)], space.aligned)
    p = _scaled(p, DESCALES[descale], space)
    return filled(p, MAGNITUDES[size], at, NOISES[noise], SIZES[v_size], v_at)


def _scaled(p: Problem, factors: tuple[DescalePer, Fill] | None, space: Space) -> Problem:
    if factors is None:
        return p
    per, fill = factors
    if per == "block" and (space.descale_block is None or p.seqlens_k):
        per = "head"
    named = {name: fill for name in FACTORS if name in space.options}
    changes: dict[str, Any] = named | {"descale_per": per}
    if per == "block":
        changes["descale_block"] = space.descale_block
    return replace(p, **changes)


def _scale(space: Space, index: int) -> float | None:
    scale = SCALES[index]
    if scale is None and not space.scale_none:
        return 0.5
    if scale is not None and scale <= 0 and space.positive_scale:
        return abs(scale) or 1.0
    return scale


def _mask(space: Space, hides: int, amount: int, form: int, keys: int, seed: int) -> Mask | None:
    if hides < UNMASKED:
        return None
    kind, dtype, rank, axes = _forms(space)[form]
    which: Hides = HIDES[hides - UNMASKED]
    n = amount if amount < 18 else (keys, keys - 1, 32, 33, 64, 100)[amount - 18]
    bias = BIASES[seed % len(BIASES)] if kind == "additive" else Fill()
    # Half of the masks that may differ over heads and batches do.
    if rank == 4 and seed % 2:
        axes += "bh"
    return Mask(
        kind=kind, hides=which, amount=max(n, 0), dtype=dtype, bias=bias, rank=rank,
        per_batch="b" in axes, per_head="h" in axes, per_query="q" in axes or rank == 1,
        per_key="k" in axes,
    )  # fmt: skip
