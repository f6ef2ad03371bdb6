"""Openings: the problems that a search begins with, before any is drawn.

Each combines many of the features at which kernels go wrong, with sizes and values that depend
on the seed: several heads and batches that all differ, lengths that end inside a block, rows and
blocks that are hidden, maxima that arrive late. What a drawn problem shows only if a dozen draws
agree is shown at once. Those that combine most come first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle, zip_longest
from typing import Any, TypeVar

from flashcheck import grad_out
from flashcheck.families import filled
from flashcheck.fills import Fill
from flashcheck.formats import FLOAT8, FORMATS
from flashcheck.inputs import DESCALES, Layout
from flashcheck.masks import Hides, Mask
from flashcheck.problem import Problem
from flashcheck.strategies import LENGTHS, Space

T = TypeVar("T")

NORMAL = Fill(noise="normal", spread=8.0)

LONG = 4099
"""Keys of the one long row: 257 blocks of 16, 33 of 128."""

TALL = 2100, 2177
"""Queries where distances leave the whole numbers of float16, and programs a grid of 128."""

GROUPED = 166, 194
"""Query heads on two key heads: groups of 83 and 97, whose float32 reciprocals are too small."""

SQUARE = 1060, 1153
"""Queries and keys where a causal block lies beyond 1024."""

ENOUGH = 8
"""Queries below which a problem that is too large has fewer heads instead."""

LOW = Fill(level=-1e4, noise="normal", spread=4.0), Fill(level=-3e4, noise="normal", spread=4.0)
"""Biases that are so low that they are taken for hiding."""

DEEP = 7e4
"""How far below 0 all scores are where finite numbers that stand for -inf should show: -1e4,
-5e4 and the least of float16, -65504, lie above them. At twice that, few bounds say anything."""


# Of q, k, v and what goes with them alike; then of one alone.
_WHOLE: tuple[Layout, ...] = ("transposed", "packed")
_MOVED: tuple[Layout, ...] = (*_WHOLE, "mixed_k", "mixed_v", "mixed_q")
_PLACED: tuple[Layout, ...] = ("strided", "offset", "padded")
_EXPANDED: tuple[Layout, ...] = ("expanded_heads", "expanded_batch")
_OTHER: tuple[Layout, ...] = (*_EXPANDED, *_PLACED)
_BASE = Problem(batch=2, heads=4, kv_heads=2, dim=16, dim_v=16, scores="normal", values="normal")
_MASK = Mask(per_batch=True, per_head=True)
_ENDS: tuple[Hides, ...] = ("head", "tail")
KEYLESS = Mask(hides="row", amount=130), Mask(hides="window", amount=7)
"""Hide all keys from a row beyond a block of 128, or from all rows far past the last key."""

_STAIRS = Fill("stairs", level=0.25, base=0.0625, noise="positive", spread=2.0**-6)
"""Slopes of which no two are alike, and whose products show where they are rounded."""

_FURTHER: dict[str, tuple[str, Any]] = {
    "window_size": ("window", (-1, -1)), "softcap": ("softcap", 0.0),
    "alibi_slopes": ("alibi_slopes", None), "sinks": ("sinks", None),
    "num_splits": ("num_splits", 1),
}  # fmt: skip
"""Options that few kernels have: the field of a problem, and its neutral value."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """A problem, whose families are filled by scores that differ by `nats`.

    tall: where it is too large it has fewer heads before it has fewer queries.
    """

    problem: Problem
    nats: float = 1.0
    tall: bool = False


def openings(space: Space, seed: int) -> Iterator[Problem]:
    """The problems of `space` to begin with; options that it lacks are left out."""
    rng = random.Random(seed)
    moved = cycle(rng.sample((*_MOVED, *_PLACED), len(_MOVED) + len(_PLACED)))
    dense = [*_problems(_recipes(rng, space.max_length), space, rng, moved)]
    further = [*_problems(_further(rng), space, rng, moved)]
    sequences = [*_problems(_sequences(rng, space), space, rng, moved)]
    narrow: list[Problem] = []
    if space.dtype in FLOAT8:
        narrow = [*_problems(_factors(rng, space), space, rng), *_weights(rng, space)]
    # First what few kernels take.
    yield from _in_turn(narrow, sequences, further, dense)
    yield from _long(random.Random(seed), space)


def endings(space: Space, seed: int) -> Iterator[Problem]:
    """Problems for every configuration of a kernel: whole blocks that are hidden, in rows whose
    scores are all very low, blocks on the diagonal, a window over blocks to one side alone, blocks
    of queries whose masks differ, blocks of queries past the last key, blocks of keys that no query
    sees, and keys, and queries too, that end where blocks do.
    """
    rng = random.Random(seed)
    # Odd multiples of 16, of 32 and of 64: each is whole for one size and not for the next.
    sizes = (48, 80, 16), (96, 32), (64, 192)
    lengths = [rng.choice([n for n in of if n <= space.max_length] or of) for of in sizes]
    layouts = rng.sample((rng.choice(_EXPANDED), *rng.sample(_PLACED, 2)), 3)
    sized = [
        replace(_BASE, len_q=5, len_k=n, dim=8, dim_v=8, layout=layout)
        for n, layout in zip(lengths, layouts, strict=True)
    ]
    # Whole for every size, where a mask may be taken for none, and is the same for all heads.
    sized[-1] = replace(sized[-1], mask=Mask(hides="random"))
    n = rng.choice((40, 50, 70))
    causal = replace(_BASE, is_causal=True, len_q=n, len_k=n, dim=8, dim_v=8)
    many, few = rng.choice((140, 150)), rng.choice((7, 20))
    past = replace(causal, batch=1, len_q=many, len_k=few)
    unseen = replace(past, len_q=few, len_k=many)
    # Each with its own mask of more than 1024 elements, some of them without a key.
    keyless = rng.choice(KEYLESS)
    rows = replace(keyless, per_head=True, amount=min(keyless.amount, space.max_length - 1))
    small = replace(_BASE, batch=1, len_q=many, dim=2, dim_v=2)
    masked = replace(small, heads=2, len_k=rng.choice((11, 13)), mask=rows)
    # As small as that many queries and keys can be, or few keys.
    least = 2 * min(space.head_dims)  # multiply-adds of a score
    window = rng.choice(((70, 0), (0, 70)))
    aside = replace(small, heads=1, kv_heads=1, len_k=many, dim=1, dim_v=1, window=window)
    if least * many * many > space.work:
        aside = replace(aside, len_k=17, window=(0, 70))
    # As many queries as keys, in whole blocks of every size.
    whole = [n for n in (64, 128, 256) if n <= space.max_length and least * n * n <= space.work]
    if largest := whole[-2:]:
        n = largest[seed % len(largest)]
        sized.append(replace(aside, is_causal=True, window=(-1, -1), len_q=n, len_k=n))
    placed = map(_Recipe, (causal, past, unseen, *sized))
    tall = (_Recipe(p, tall=True) for p in (aside, masked))
    return _problems((_hidden("head", space.max_length, DEEP), *tall, *placed), space, rng)


def _in_turn(*groups: Iterable[T]) -> Iterator[T]:
    """One of each group that still has any, again and again."""
    for turn in zip_longest(*groups):
        yield from (one for one in turn if one is not None)


def _problems(
    recipes: Iterable[_Recipe],
    space: Space,
    rng: random.Random,
    moved: Iterator[Layout] | None = None,
) -> Iterator[Problem]:
    """Every second that is contiguous is `moved`."""
    for number, recipe in enumerate(recipes):
        seed = rng.randrange(space.seeds)
        if space.backward:
            seed = grad_out.telling(seed)
        problem = replace(recipe.problem, dtype=space.dtype, seed=seed)
        if moved is not None and problem.layout == "contiguous" and number % 2:
            problem = replace(problem, layout=next(moved))
        places = rng.randrange(32), rng.randrange(32)
        wanted = {o for o, (name, value) in _FURTHER.items() if getattr(problem, name) != value}
        if wanted and wanted.isdisjoint(space.options) and not problem.seqlens_k:
            continue
        problem = replace(problem, **dict(_FURTHER[o] for o in wanted - space.options))
        masked = replace(problem, mask=_mask(space, problem.mask))
        fitted = _fitted(masked, space, recipe.tall or problem.is_causal)
        if fitted is not None:
            fitted = replace(fitted, layout=_expanded(fitted, space))
            yield filled(fitted, recipe.nats, places[0], 1.0, 1.0, places[1])


def _expanded(p: Problem, space: Space) -> Layout:
    """Its layout; the other expanded one where there is a single one of what is expanded."""
    if p.layout not in _EXPANDED:
        return p.layout
    several = {"expanded_batch": p.batch > 1, "expanded_heads": p.kv_heads > 1}
    meant = sorted(_EXPANDED, key=lambda layout: layout != p.layout)
    return next((n for n in meant if several[n] and n in space.layouts), "contiguous")


def _hidden(end: Hides, longest: int, nats: float) -> _Recipe:
    """Whole blocks hidden at one end, whatever their size, beside scores that are far below 0."""
    n = min(150, longest)
    mask = replace(_MASK, hides=end, amount=n - 10)
    low = replace(_BASE, len_q=5, len_k=n, values="positive", scores="all_negative", mask=mask)
    return _Recipe(low, nats)


def _recipes(rng: random.Random, longest: int) -> Iterator[_Recipe]:
    some, base = rng.choice, _BASE
    additive = replace(_MASK, kind="additive")
    n = some((33, 40, 50))
    causal = replace(base, is_causal=True)
    yield _Recipe(replace(causal, len_q=some((n, 33, 40)), len_k=n, dim_v=24, layout=some(_OTHER)))
    swallowed = replace(additive, hides=some(("random", "nothing")), bias=some(LOW))
    yield _Recipe(replace(base, len_q=5, len_k=some((33, 20)), mask=swallowed))
    # More queries than a block holds, and fewer keys than queries.
    oblong = replace(causal, len_q=some((140, 150)), len_k=some((7, 20)), dim=33, dim_v=33)
    deep = replace(oblong, scores="all_negative", values="positive", layout=some(_MOVED))
    yield _Recipe(deep, DEEP)
    # One query on a cache whose tail is hidden.
    tail = replace(_MASK, hides=some(("tail", "random")), amount=9)
    one = replace(base, len_q=1, len_k=some((193, 300, 77)), scale=-1.0)
    yield _Recipe(replace(one, mask=tail))
    # Maxima that arrive late, in more than one block.
    late = replace(base, len_q=17, len_k=some((129, 97, 161)), scores="rising")
    yield _Recipe(late, some((6.0, 20.0)))
    yield _hidden(some(_ENDS), longest, 110.0)
    spike = replace(base, len_q=6, len_k=some((34, 50)), scores="late_max", values="index")
    # The one layout in which k and v of the same shape have other strides.
    yield _Recipe(replace(spike, layout=some(("mixed_k", "mixed_v"))), 12.0)
    # Small enough for a batch of two where small heads are taken: a batch's stride is not its
    # heads', and a mask repeats. The largest score of one row is out of reach of another.
    per_head = some((True, False))
    biased = replace(additive, hides="random", bias=Fill(noise="normal", spread=2e3))
    biased = replace(biased, per_head=per_head, per_batch=not per_head)
    apart = replace(base, len_q=5, len_k=some((33, 40)), dim=8, dim_v=3, layout=some(_WHOLE))
    yield _Recipe(replace(apart, mask=biased))
    wide = replace(base, len_q=20, len_k=some((64, 128)), dim=some((72, 80)), dim_v=40)
    yield _Recipe(replace(wide, scale=some((0.5, -0.25))))
    # Groups of three. A scale that is falsy.
    yield _Recipe(replace(base, batch=1, heads=6, len_q=2, len_k=some((3, 7)), scale=0.0))
    yield _Recipe(replace(base, len_q=3, len_k=0, scores="equal", values="ones"))
    # One query, which stands at the first key where is_causal is aligned at the top.
    yield _Recipe(replace(causal, len_q=1, len_k=some((5, 20))))
    # Heads wider than 128, multiples of 8 and not.
    broad, size = replace(base, batch=1, len_q=3, len_k=some((9, 20))), some((132, 255))
    yield _Recipe(replace(broad, dim=size, dim_v=136), tall=True)
    yield _Recipe(replace(broad, dim=136, dim_v=size), tall=True)


def _further(rng: random.Random) -> Iterator[_Recipe]:
    """For kernels that take one of the options at least: windows, softcap and so on."""
    some, base = rng.choice, _BASE
    # Sinks above every score and below, beside slopes that differ from head to head.
    few = replace(base, len_q=9, len_k=some((33, 50)), alibi_slopes=_STAIRS)
    above = Fill("alternate", level=some((110.0, 130.0)))
    # Where these are not contiguous either.
    few = replace(few, layout=some((*_WHOLE, "padded", "strided")))
    sinking = replace(few, sinks=above, scores="rising", num_splits=some((2, 3)))
    yield _Recipe(sinking, some((2.0, 4.0)))
    # Scores that reach the cap, added to and hidden after it.
    biased = replace(_MASK, kind="additive", hides="random", bias=NORMAL)
    capped = replace(base, len_q=5, len_k=some((33, 65)), softcap=some((2.0, 5.0)), mask=biased)
    yield _Recipe(replace(capped, scale=some((0.5, 1.7)), scores="rising"))
    # A window that ends inside blocks, beside more keys than queries, fewer, and as many.
    window = some((5, 9, 20)), some((0, 1, 3))
    longer = replace(base, len_q=some((40, 50)), len_k=some((129, 97, 161)), window=window)
    yield _Recipe(replace(longer, alibi_slopes=_STAIRS))
    sunk = replace(base, len_q=some((40, 50)), len_k=some((20, 33)), window=(some((3, 7)), 0))
    yield _Recipe(replace(sunk, sinks=Fill("stairs", level=1.5, base=-2.0)))
    n = some((40, 50, 70))
    edge = replace(base, len_q=n, len_k=n, dim=8, dim_v=8, window=some(((0, 0), (0, 2), (-1, 0))))
    yield _Recipe(replace(edge, num_splits=some((2, 3))))
    # Splits that all but the last are hidden, and more splits than keys.
    late = replace(base, len_q=17, len_k=some((129, 97, 161)), scores="rising", num_splits=5)
    head = replace(_MASK, hides="head", amount=70)
    yield _Recipe(replace(late, mask=head), some((6.0, 20.0)))
    yield _Recipe(replace(base, len_q=3, len_k=some((5, 7)), num_splits=some((8, 11))), 6.0)
    high = replace(base, len_q=9, len_k=some((67, 131)), scores="late_max", num_splits=3)
    yield _Recipe(high, some((750.0, 900.0)))  # beyond exp in float64


def _sequences(rng: random.Random, space: Space) -> Iterator[_Recipe]:
    """For kernels that take packed batches or pages: sequences of which no two are alike."""
    packed = _of_a_batch(rng) if "cu_seqlens_q" in space.options else ()
    pages = space.pages if "block_table" in space.options else ()
    paged = _of_a_cache(rng, pages) if pages else ()
    yield from _in_turn(paged, packed)


def _of_a_batch(rng: random.Random) -> Iterator[_Recipe]:
    some, base = rng.choice, replace(_BASE, scores="rising")
    # One without keys, which is not the last, and one without queries.
    longer = rng.sample(((2, some((7, 9))), (0, 5), (1, some((33, 40))), (9, 19)), 4)
    longer.insert(rng.randrange(4), (3, 0))
    window = some((3, 12)), some((0, 2, -1))
    placed = replace(base, window=window, alibi_slopes=_STAIRS)
    yield _Recipe(_packed(placed, longer), 6.0)
    # More queries than any sequence has keys, aligned at the top.
    fewer = rng.sample(((some((11, 20)), 7), (1, 6), (5, 5), (0, 3)), 4)
    fewer.insert(rng.randrange(4), (4, 0))
    yield _Recipe(_packed(replace(base, is_causal=True, num_splits=some((1, 3))), fewer), 6.0)
    # More sequences than a block has rows, or a search of four or five steps tells apart.
    many = [(rng.randrange(1, 4), rng.randrange(1, 6)) for _ in range(some((33, 40)))]
    yield _Recipe(_packed(replace(base, dim=8, dim_v=8), many), 6.0)


def _of_a_cache(rng: random.Random, pages: tuple[int, ...]) -> Iterator[_Recipe]:
    some, base = rng.choice, replace(_BASE, scores="rising")
    few = [n for n in pages if 1 < n <= 16] or pages  # in a page of 1 no sequence ends inside
    many = [n for n in pages if 16 < n <= 64] or few
    # A window at the end, and is_causal at the top, of every sequence.
    split = replace(base, num_splits=some((2, 3)))
    # Where the table is the first columns of another.
    wider = replace(split, layout=some((*_MOVED, *_PLACED)))
    yield _Recipe(_paged(replace(wider, window=(some((3, 12)), 0)), some(few), rng), 6.0)
    sunk = replace(base, sinks=Fill("stairs", level=1.5, base=-2.0))
    yield _Recipe(_paged(sunk, some(few), rng), 6.0)
    yield _Recipe(_paged(base, some(many), rng), 6.0)
    causal = _paged(replace(split, is_causal=True), some(few), rng)
    yield _Recipe(replace(causal, len_q=some((5, 9))), 6.0)
    # A prefix that all have, two of them as long as each other.
    yield _Recipe(_paged(replace(base, shared=1), some(few), rng), 6.0)


def _packed(p: Problem, lengths: list[tuple[int, int]]) -> Problem:
    queries, keys = zip(*lengths, strict=True)
    return replace(
        p, batch=1, len_q=sum(queries), len_k=sum(keys), seqlens_q=queries, seqlens_k=keys,
        longest=(0, 64),
    )  # fmt: skip


def _paged(p: Problem, page: int, rng: random.Random) -> Problem:
    """A cache whose table has more room than is used; one sequence is empty, unless they share
    pages, and no other ends where a page does."""
    width = max(3, 64 // page) + 1
    long = (width - 1) * page - page // 3
    lengths = (long, page + page // 2 + 1, long if p.shared else 0)
    return replace(
        p, batch=3, heads=4, kv_heads=2, len_q=rng.choice((1, 3)), len_k=width * page, page=page,
        spare=2, seqlens_k=tuple(rng.sample(lengths, 3)),
    )  # fmt: skip


def _factors(rng: random.Random, space: Space) -> Iterator[_Recipe]:
    """float8: factors of q, k and v that differ much from head to head, and between blocks."""
    some, named = rng.choice, [name for name in DESCALES if name in space.options]
    if not named:
        return
    splits = some((2, 3)) if "num_splits" in space.options else 1
    apart = (((0, 1, 0, 0), 6.0), ((1, 0, 0, 0), 2.0**-4))
    of: dict[str, Any] = dict.fromkeys(named, Fill(noise="positive", spread=0.5, plants=apart))
    heads = replace(_BASE, len_q=17, len_k=some((40, 70)), descale_per="head", **of)
    yield _Recipe(replace(heads, num_splits=splits))
    # One number for all heads, expanded.
    of = dict.fromkeys(named, Fill(level=some((0.3, 1.7))))
    one = replace(_BASE, len_q=3, len_k=some((5, 9)), descale_per="tensor", **of)
    yield _Recipe(replace(one, layout=some(_EXPANDED)))
    if space.descale_block is None:
        return
    # Blocks of queries and of keys, the last of each a single row.
    queries, keys = (n + 1 for n in space.descale_block)
    of = dict.fromkeys(named, Fill("stairs", level=0.5, base=0.25, noise="positive", spread=0.25))
    for n in (5 * keys - 4, 2 * keys - 1):
        blocks = replace(_BASE, len_q=queries, len_k=n, descale_per="block", num_splits=splits)
        yield _Recipe(replace(blocks, descale_block=space.descale_block, **of))


def _weights(rng: random.Random, space: Space) -> Iterator[Problem]:
    """float8: all weight that counts is so small that P in float8 would be 0, were it not
    enlarged; and one key rises above all before it by less than a maximum may lag."""
    few = replace(_BASE, batch=1, len_q=3, len_k=rng.choice((70, 100, 133)), scores="late_max")
    # Below the first key, whose value is 0; half an octave more, and what rounding k may take.
    others = Fill("spike", level=0.0, base=1.0)
    underflow = 0.8 - math.log(FORMATS[space.dtype].underflow)
    last = Fill("spike", level=1.0, at=-1)
    for nats, v in ((underflow, others), (2.5, last), (5.0, last)):
        for p in _problems([_Recipe(few, nats)], space, rng):
            yield replace(p, k=replace(p.k, at=v.at), v=v)


def _long(rng: random.Random, space: Space) -> Iterator[Problem]:
    """More keys, queries or heads than are drawn, of few features."""
    narrow = replace(_BASE, batch=1, heads=1, kv_heads=1, len_q=3, len_k=3, dim=2, dim_v=2)
    for p in _problems([_Recipe(narrow)], space, rng):
        yield _drift(p)
        if space.max_length < max(LENGTHS):  # in Triton's interpreter
            return
        # Few keys, from which most queries are far.
        tall = replace(p, len_q=rng.choice(TALL), len_k=rng.choice((4, 7)))
        n = rng.choice(SQUARE)
        square = replace(p, len_q=n, len_k=n, is_causal="is_causal" in space.options)
        longer = [tall, square]
        if "enable_gqa" in space.options and space.max_heads >= max(GROUPED):
            longer.append(replace(p, heads=rng.choice(GROUPED), kv_heads=2, len_q=1))
        if "alibi_slopes" in space.options:
            longer.append(replace(tall, alibi_slopes=_STAIRS))
        for problem in longer:
            yield filled(problem, 1.0, rng.randrange(32), 1.0, 1.0, rng.randrange(32))


def _drift(p: Problem) -> Problem:
    """A maximum that rises a little every 16 keys of a long row, in half of the rows for kernels
    that begin with the last, and a value for what is seen first.

    What is rounded once a block is off by half a unit roundoff at most: it takes many blocks to
    show, and steps at which it is off by much, so that they differ from query to query.
    """
    scale = 1 / math.sqrt(p.dim) if p.scale is None else p.scale
    end = 2 / (scale * p.dim)  # k goes from 0 to 2: 4 nats
    q = Fill("stairs", level=end / 15, base=-end, noise="normal", spread=end / 16)
    k = Fill("stairs", level=2.0**-7, period=16)
    v = Fill(plants=(((0, 0, 0, 0), 4096.0), ((0, 0, -1, min(1, p.dim_v - 1)), 4096.0)))
    return replace(p, len_q=31, len_k=LONG, scores="rising", values="one_key", q=q, k=k, v=v)


def _size(p: Problem) -> int:
    """Multiply-adds of a head."""
    if p.packed:
        pairs = sum(q * k for q, k in zip(p.seqlens_q, p.seqlens_k, strict=True))
        return pairs * (p.dim + p.dim_v)
    return p.batch * p.len_q * p.len_k * (p.dim + p.dim_v)


def _mask(space: Space, mask: Mask | None) -> Mask | None:
    """The mask in a form that the kernel takes, or none."""
    if mask is None or "attn_mask" not in space.options:
        return None
    for dtype in ("float32", "query"):
        if (mask.kind, dtype, mask.rank) in space.mask_forms:
            return replace(mask, dtype=dtype)
    return None


def _fitted(p: Problem, space: Space, tall: bool) -> Problem | None:
    """The problem within the space, smaller where it has to be; None where it says nothing.

    A `tall` one keeps its queries longest: under a causal mask the first see next to nothing.
    """
    options, longest = space.options, space.max_length
    if p.len_k == 0 and not space.empty_keys:
        return None
    if p.heads != p.kv_heads and "enable_gqa" not in options:
        p = replace(p, kv_heads=p.heads)
    if p.batch * p.heads > space.max_heads and not p.seqlens_k:
        p = replace(p, batch=1)
        if p.heads > space.max_heads:
            p = replace(p, heads=min(p.heads // p.kv_heads, space.max_heads), kv_heads=1)
    scale = p.scale if "scale" in options else None
    if scale is None and not space.scale_none:
        scale = 0.5
    if scale is not None and scale <= 0 and space.positive_scale:
        scale = 0.5
    layout: Layout = p.layout if p.layout in space.layouts else "contiguous"
    dim, dim_v = (
        min(space.head_dims, key=lambda d: (abs(d - wanted), d)) for wanted in (p.dim, p.dim_v)
    )
    p = replace(
        p, scale=scale, layout=layout, is_causal=p.is_causal and "is_causal" in options, dim=dim,
        dim_v=dim_v if space.dim_v_differs else dim,
    )  # fmt: skip
    if p.seqlens_k:  # whose lengths belong together
        if p.page and p.heads * _size(p) > space.work:
            p = replace(p, len_q=1)
        size = _size(p)
        if p.heads * size > space.work:
            p = replace(p, heads=p.heads // p.kv_heads, kv_heads=1)
        if p.heads * size > space.work:
            p = replace(p, heads=1)
        return p if p.heads * size <= space.work else None
    p = replace(p, len_k=min(p.len_k, longest), len_q=min(p.len_q, longest))
    if space.causal_square and p.is_causal:
        p = replace(p, len_q=p.len_k)
    # Where it is too large: fewer batches, fewer heads, fewer queries, in this order.
    cost = max(p.len_k, 1) * (p.dim + p.dim_v)
    rows = p.len_q if tall else min(p.len_q, ENOUGH)
    if p.batch * p.heads * rows * cost > space.work:
        p = replace(p, batch=1)
    if p.heads * rows * cost > space.work:
        p = replace(p, heads=p.heads // p.kv_heads, kv_heads=1)
    if p.heads * rows * cost > space.work and tall:
        p = replace(p, heads=1)
    rows = space.work // (cost * p.batch * p.heads)
    if p.is_causal and space.causal_square and rows < p.len_q:
        n = math.isqrt(space.work // ((p.dim + p.dim_v) * p.batch * p.heads))
        return replace(p, len_q=n, len_k=n) if n else None
    return replace(p, len_q=min(p.len_q, rows)) if rows else None
