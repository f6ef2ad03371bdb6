"""Drawn problems: few draws, simplest first, every kind of trouble, within what a kernel takes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import hypothesis
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.data import ConjectureData

from flashcheck import strategies
from flashcheck.bounds import bound
from flashcheck.families import SCORES, VALUES
from flashcheck.formats import FORMATS
from flashcheck.inputs import LAYOUTS
from flashcheck.kernel import Contract
from flashcheck.masks import HIDES, Mask
from flashcheck.openings import KEYLESS, LONG, SQUARE, TALL, endings, openings
from flashcheck.oracle import float64
from flashcheck.problem import Problem, elements
from flashcheck.strategies import GRIDS, HEAD_DIMS, MASK_FORMS, Space, problems

EDGES = (15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)


@cache
def drawn(space: Space, count: int) -> tuple[Problem, ...]:
    return strategies.drawn(space, count, seed=20250101)


@cache
def many() -> tuple[Problem, ...]:
    return drawn(Space(), 2000)


# -- the draw itself ----------------------------------------------------------------------


def test_a_draw_costs_fewer_than_twenty_choices() -> None:
    counts: list[int] = []

    @settings(max_examples=50, phases=(Phase.generate,), database=None, deadline=None)
    @given(st.data())
    def count(data: st.DataObject) -> None:
        inner: ConjectureData = data.conjecture_data
        before = len(inner.nodes)
        data.draw(problems())
        counts.append(len(inner.nodes) - before)

    count()
    assert len(counts) >= 50
    assert max(counts) < 20


def test_the_simplest_problem_comes_first() -> None:
    p = hypothesis.find(problems(), lambda _: True)
    assert (p.batch, p.heads, p.kv_heads, p.len_q, p.len_k) == (1, 1, 1, 1, 1)
    assert (p.dim, p.dim_v) == (16, 16)
    assert (p.mask, p.is_causal, p.scale, p.layout) == (None, False, None, "contiguous")
    assert p.seed == 0
    assert {p.q.noise, p.k.noise, p.v.noise} == {"none"}
    assert (p.scores, p.values) == ("equal", "ones")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("mask", "mask"), ("is_causal", "is_causal"), ("enable_gqa", "enable_gqa")],
)
def test_hypothesis_brings_in_one_feature_and_no_more(name: str, expected: str) -> None:
    p = hypothesis.find(
        problems(), lambda p: bool(getattr(p, name)),
        settings=settings(database=None, derandomize=True, max_examples=150),
    )  # fmt: skip
    features = {"mask": p.mask is not None, "is_causal": p.is_causal, "enable_gqa": p.enable_gqa}
    assert [name for name, on in features.items() if on] == [expected]
    assert (p.batch, p.len_q, p.len_k, p.layout) == (1, 1, 1, "contiguous")


def test_nearly_all_draws_are_different() -> None:
    assert len(many()) == 2000
    assert len(set(many())) > 1900


def test_a_seed_gives_the_same_problems_again() -> None:
    first = drawn(Space(), 50)
    drawn.cache_clear()
    assert drawn(Space(), 50) == first


# -- what occurs --------------------------------------------------------------------------


def test_every_family_occurs() -> None:
    assert {p.scores for p in many()} == set(SCORES)
    assert {p.values for p in many()} == set(VALUES)


def _axes(m: Mask) -> str:
    own = (("b", m.per_batch), ("h", m.per_head), ("q", m.per_query and m.rank > 1))
    return "".join(axis for axis, yes in (*own, ("k", m.per_key)) if yes)


def test_every_mask_occurs() -> None:
    masks = [p.mask for p in many() if p.mask is not None]
    assert {m.hides for m in masks} == set(HIDES)
    forms = {(m.kind, m.dtype, m.rank, _axes(m)) for m in masks}
    assert forms >= {(kind, dtype, rank, axes) for kind, dtype, rank, axes in MASK_FORMS}
    assert {m.kind for m in masks if m.bias.noise != "none"} == {"additive"}
    assert 0.2 < len(masks) / len(many()) < 0.6
    # At 16-bit precision, too, where -inf and a bias meet.
    assert any(m.bias.noise != "none" and m.hides != "nothing" for m in masks)


def test_every_grid_and_layout_occurs() -> None:
    assert {p.layout for p in many()} == set(LAYOUTS)
    assert {(p.batch, p.heads, p.kv_heads) for p in many()} >= set(GRIDS)


def test_every_relation_of_shapes_occurs() -> None:
    counts: Counter[str] = Counter()
    for p in many():
        counts["Lq < Lk"] += p.len_q < p.len_k
        counts["Lq > Lk"] += p.len_q > p.len_k
        counts["Lq = Lk > 1"] += p.len_q == p.len_k > 1
        counts["Lk = 0"] += p.len_k == 0
        counts["Lk = 1"] += p.len_k == 1
        counts["Lq = 1"] += p.len_q == 1
        counts["Dv < D"] += p.dim_v < p.dim
        counts["Dv > D"] += p.dim_v > p.dim
        counts["causal"] += p.is_causal
        counts["causal, Lq < Lk"] += p.is_causal and p.len_q < p.len_k
        counts["causal, Lq > Lk"] += p.is_causal and p.len_q > p.len_k
        counts["causal, gqa"] += p.is_causal and p.enable_gqa
        counts["mask, gqa"] += p.mask is not None and p.enable_gqa
        counts["scale 0"] += p.scale == 0
        counts["scale < 0"] += p.scale is not None and p.scale < 0
        counts["long keys"] += p.len_k > 256
    rare = {name: n for name, n in counts.items() if n < 10}
    assert not rare, counts
    assert {p.dim for p in many()} == set(HEAD_DIMS)


@pytest.mark.parametrize("edge", EDGES)
def test_every_edge_of_a_block_occurs(edge: int) -> None:
    keys, queries = Counter(p.len_k for p in many()), Counter(p.len_q for p in many())
    assert keys[edge] >= 5
    assert queries[edge] >= 2


def test_no_mask_with_causal_and_no_large_problem() -> None:
    for p in many():
        assert not (p.is_causal and p.mask is not None)
        cost = p.batch * p.heads * p.len_q * max(p.len_k, 1) * (p.dim + p.dim_v)
        assert cost <= max(strategies.WORK, p.heads * max(p.len_k, 1) * (p.dim + p.dim_v))
        assert elements(p) == cost


# -- the contract -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nearly_all_elements_are_judged(dtype: str) -> None:
    """By checks: those with at most half of their elements vacuous; and by rows."""
    checks = usable = rows = inside = 0
    for p in drawn(Space(dtype=dtype, work=30_000), 150):
        x = p.inputs()
        b = bound(x, float64.attention(x), Contract())
        checks += 1
        usable += bool(b.vacuous.mean() <= 0.5)
        rows += b.lse.size
        inside += int((b.lse < float("inf")).sum())
    assert usable >= 0.9 * checks, f"{usable} of {checks} checks"
    assert inside >= 0.9 * rows, f"{inside} of {rows} rows"


# -- what a kernel takes ------------------------------------------------------------------


def test_options_are_respected() -> None:
    for p in drawn(Space(options=frozenset()), 150):
        assert (p.mask, p.is_causal, p.enable_gqa, p.scale) == (None, False, False, None)
    for p in drawn(Space(options=frozenset({"scale"})), 150):
        assert (p.mask, p.is_causal, p.enable_gqa) == (None, False, False)
    scales = {p.scale for p in drawn(Space(options=frozenset({"scale"})), 150)}
    assert {None, 0.0, -1.0, 1.0} <= scales


def test_head_sizes_are_respected() -> None:
    for p in drawn(Space(head_dims=(64, 128)), 150):
        assert {p.dim, p.dim_v} <= {64, 128}
    assert all(p.dim == p.dim_v for p in drawn(Space(dim_v_differs=False), 150))


def test_scales_are_respected() -> None:
    for p in drawn(Space(positive_scale=True), 200):
        assert p.scale is None or p.scale > 0
    for p in drawn(Space(scale_none=False), 200):
        assert p.scale is not None
    for p in drawn(Space(scale_none=False, positive_scale=True), 200):
        assert p.scale is not None
        assert p.scale > 0


def test_mask_forms_are_respected() -> None:
    forms = frozenset({("bool", "float32", 2), ("additive", "query", 4)})
    seen = set()
    for p in drawn(Space(mask_forms=forms), 300):
        if p.mask is not None:
            seen.add((p.mask.kind, p.mask.dtype, p.mask.rank))
    assert seen == forms
    assert all(p.mask is None for p in drawn(Space(mask_forms=frozenset()), 200))


def test_lengths_and_layouts_are_respected() -> None:
    for p in drawn(Space(empty_keys=False), 200):
        assert p.len_k > 0
    for p in drawn(Space(max_length=33, layouts=("contiguous", "offset")), 200):
        assert max(p.len_q, p.len_k) <= 33
        assert p.layout in ("contiguous", "offset")
    for p in drawn(Space(causal_square=True), 200):
        assert not p.is_causal or p.len_q == p.len_k
    for p in drawn(Space(work=2000), 150):
        assert p.len_q == 1 or elements(p) <= 2000


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_levels_are_numbers_of_the_dtype(dtype: str) -> None:
    for p in drawn(Space(dtype=dtype), 200):
        assert p.dtype == dtype
        fmt = FORMATS[dtype]
        for fill in (p.q, p.k, p.v):
            assert float(fmt.round(fill.level)) == fill.level
            assert float(fmt.round(fill.base)) == fill.base


# -- openings ------------------------------------------------------------------------------

NARROW = Space(
    options=frozenset({"is_causal"}), head_dims=(32, 64), dim_v_differs=False,
    mask_forms=frozenset(), scale_none=True, empty_keys=False, causal_square=True,
    max_length=97, max_heads=8, work=60_000, layouts=("contiguous",),
)  # fmt: skip


FEW_LAYOUTS = Space(max_heads=4, layouts=("contiguous", "expanded_batch"))


@pytest.mark.parametrize(
    "space", [Space(), Space(dtype="bfloat16"), NARROW, FEW_LAYOUTS],
    ids=["all", "half", "narrow", "few layouts"],
)  # fmt: skip
def test_openings_stay_within_the_space(space: Space) -> None:
    for seed in range(40):
        found = [*openings(space, seed), *endings(space, seed)]
        assert len(found) >= 10
        long = [p for p in found if max(p.len_q, p.len_k) in (LONG, *TALL, *SQUARE)]
        assert len(long) == (1 if space.max_length < 513 else 3)
        for p in found:
            assert p.dtype == space.dtype
            assert p.dim in space.head_dims
            assert p.dim_v == p.dim or space.dim_v_differs
            assert p.len_k > 0 or space.empty_keys
            assert p.batch * p.heads <= space.max_heads
            if p not in long:
                assert max(p.len_q, p.len_k) <= space.max_length
                assert p.batch * p.heads * p.len_q * p.len_k * (p.dim + p.dim_v) <= space.work
            assert p.layout in space.layouts
            assert p.mask is None or (p.mask.kind, p.mask.dtype, p.mask.rank) in space.mask_forms
            assert p.inputs().used <= space.options
            assert not (p.is_causal and space.causal_square) or p.len_q == p.len_k


@pytest.mark.parametrize("head_dims", [(64, 128), Space().head_dims], ids=["wide", "all"])
def test_more_queries_than_a_block_in_windows_and_masks(head_dims: tuple[int, ...]) -> None:
    options = Space().options | {"window_size"}
    keyless = [replace(mask, per_head=True) for mask in KEYLESS]
    for seed in range(40):
        found = [*endings(Space(head_dims=head_dims, options=options), seed)]
        windows = [p for p in found if p.window != (-1, -1)]
        masks = [p for p in found if p.mask in keyless]
        assert windows
        assert masks
        assert min(p.len_q for p in windows + masks) > 128
        assert all(p.batch * p.kv_heads > 1 for p in found if p.layout.startswith("expanded"))


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_causal_squares_of_whole_blocks(dtype: str) -> None:
    work = Space().work // (4 if dtype == "float64" else 1)
    for seed in range(4):
        found = endings(Space(dtype=dtype, work=work), seed)
        assert [p for p in found if p.is_causal and p.len_q == p.len_k in (64, 128, 256)]


def test_openings_are_many_at_once_and_change_with_the_seed() -> None:
    first, again, other = (list(openings(Space(), seed)) for seed in (1, 1, 2))
    assert first == again != other
    options = {option for p in first for option in p.inputs().used}
    assert options == {"scale", "is_causal", "attn_mask", "enable_gqa"}
    assert {p.len_k == 0 for p in first} == {True, False}
    assert sum(p.layout != "contiguous" for p in first) >= 4
