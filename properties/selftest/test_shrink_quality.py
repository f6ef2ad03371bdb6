"""Shrunk problems are what a person would have written: one small fault of a kernel each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase

from flashcheck.causes import Cause, causes
from flashcheck.fills import Fill
from flashcheck.kernel import Kernel
from flashcheck.law import Subject, laws
from flashcheck.problem import Problem, elements
from flashcheck.search import Search
from flashcheck.shrink import MAX_RUNS, shrink
from flashcheck.strategies import Space, problems
from flashcheck.verdict import Check
from flashcheck.worker import InProcess

BLOCK = 32
AGREEMENT = laws()[0]
SPACE = Space(max_length=130, work=30_000)
SEEDS = (0, 1, 2)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    fault: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Online softmax in torch over blocks of 32 keys, with one fault, or none."""
    q, k, v = query.float(), key.float(), value.float()
    (_, heads, rows, dim), n = q.shape, k.shape[2]
    if enable_gqa:
        h = torch.arange(heads)
        kv = h % k.shape[1] if fault == "gqa" else h // (heads // k.shape[1])
        k, v = k[:, kv], v[:, kv]
    if fault == "batch":
        k = k[:1].expand_as(k)
    factor = 1 / math.sqrt(dim) if scale is None or fault == "scale" else scale
    s = (q @ k.mT) * factor
    i, j = torch.arange(rows)[:, None], torch.arange(n)
    if is_causal:
        shift = {"sees next": 1, "not itself": -1}.get(fault, 0)
        s = s.masked_fill(j > i + shift, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        s = s.masked_fill(attn_mask if fault == "inverted" else ~attn_mask, -math.inf)
    elif attn_mask is not None and fault != "additive":
        s = s + attn_mask.float()
    hidden = {
        "first key": j == 0,
        "last key": (j == n - 1) & (n > 1),
        "keys 64": (j >= 64) & (rows > 16),
        "odd keys": (j % 2 == 1) & (n % 2 == 1),
    }.get(fault)
    if hidden is not None:
        s = s.masked_fill(hidden, -math.inf)
    stop = n - n % BLOCK if fault == "tail" and n > BLOCK else n

    m = torch.full((*s.shape[:3], 1), 0.0 if fault in ("no max", "m is 0") else -math.inf)
    l, acc = torch.zeros_like(m), torch.zeros(*s.shape[:3], v.shape[3])
    for start in range(0, stop, BLOCK):
        block = s[..., start : start + BLOCK]
        new = torch.maximum(m, block.amax(-1, keepdim=True))
        if fault == "no max":
            new = m
        if fault == "row 0":
            new = new[:, :, :1].expand_as(new)
        ref = new if fault == "nan rows" else new.masked_fill(new == -math.inf, 0.0)
        p, alpha = (block - ref).exp(), (m - ref).exp()
        l = l * alpha + p.sum(-1, keepdim=True)
        acc = acc * (1 if fault == "no rescale" else alpha) + p @ v[:, :, start : start + BLOCK]
        m = new
    out = acc / (l if fault == "nan rows" and n else l.masked_fill(l == 0, 1.0))
    if fault == "dv":
        out[..., dim:] = 0
    if fault == "scale 0" and scale == 0:
        out = out * math.nan
    if fault == "wide v" and v.shape[3] % 32 == 0:
        out = out * 1.01
    if fault == "rows":
        out[:, :, 1:] = out[:, :, :1]
    return out.to(query.dtype), (m + l.log())[..., 0].float()


@cache
def subject(fault: str, dtype: str = "float32", lse: bool = True) -> Subject:
    def fn(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
        attn_mask: torch.Tensor | None = None, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        both = attention(
            query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa, fault=fault,
        )  # fmt: skip
        return both if lse else both[0]

    runner = InProcess(Kernel(fn, name="attention"))
    return Subject(runner, runner.start(), SPACE)


def shrunk(fault: str, seed: int) -> tuple[list[Cause], int]:
    kernel = subject(fault)
    count = 0

    def enough(problem: Problem, config: str | None, check: Check) -> None:
        nonlocal count
        count += check.failed
        if count == 12:
            search.quota = 0

    quota = {"": 150, "keys 64": 800}.get(fault, 300)
    search = Search(kernel, [AGREEMENT], quota=quota, deadline=None, checked=enough)
    search.run(seed)
    found = causes(search.failures, {"float32": kernel}, AGREEMENT)
    return list(islice(found, 1)), search.problems


def _is(text: str) -> Callable[[Problem], bool]:
    """Whether a problem reads like that; `..` stands for anything."""
    parts = text.split("..")

    def matches(p: Problem) -> bool:
        said = str(p)
        return all(part in said for part in parts) and said.startswith(parts[0])

    return matches


ZEROS = "float32, no mask; q = 0 everywhere; k = 0 everywhere; "
LATE = "v = 0 except 1 at the last key"


@dataclass(frozen=True)
class Expected:
    """What the first cause of a fault reads like: one of these, whatever the seed."""

    fault: str
    any_of: tuple[str, ...]
    most_elements: int
    dims: tuple[int, ...] = field(default=(1,))


def _one(fault: str, *any_of: str, most: int, dims: tuple[int, ...] = (1,)) -> Expected:
    return Expected(fault, any_of, most, dims)


FAULTS = (
    _one("tail", f"1 query, 33 keys, head size 1, {ZEROS}v = 0 e", most=66),
    _one("first key", f"1 query, 1 key, head size 1, {ZEROS}v = 1 everywhere", most=2),
    _one("last key", f"1 query, 2 keys, head size 1, {ZEROS}v = 0 e", most=4),
    _one("odd keys", f"1 query, 3 keys, head size 1, {ZEROS}v = 0 e", most=6),
    _one(
        "no rescale",
        "1 query, 33 keys, head size 1, float32, no mask; q = 1 everywhere; "
        "k = 0 except 1 at the last key; v = 1 everywhere",
        most=66,
    ),
    _one(
        "m is 0",
        "1 query, 1 key, head size 1, float32, no mask; q = 1 everywhere; k = -104 everywhere; ",
        most=2,
    ),
    _one(
        "no max",
        "1 query, 1 key, head size 1, float32, no mask; q = 1 everywhere; k = 89 everywhere; ",
        "1 query, 1 key, head size 1, float32, no mask; q = 1 everywhere; k = -104 everywhere; ",
        most=2,
    ),
    _one(
        "sees next",
        f"1 query, 2 keys, head size 1, float32, causal, {ZEROS.removeprefix('float32, ')}{LATE}",
        # Its lse shows it whatever the values are.
        f"1 query, 2 keys, head size 1, float32, causal, {ZEROS.removeprefix('float32, ')}v = 0 e",
        most=5,
    ),
    _one(
        "not itself",
        f"1 query, 1 key, head size 1, float32, causal, {ZEROS.removeprefix('float32, ')}v = 1",
        most=2,
    ),
    _one(
        "inverted",
        "1 query, 1 key, head size 1, float32, boolean mask of rank..(nothing hidden); "
        "q = 0 everywhere; k = 0 everywhere; v = ",
        most=2,
    ),
    _one(
        "additive",
        "1 query, 1 key, head size 1, float32, additive..(last 1 key hidden); q = 0 e..; v = 1",
        "1 query, 1 key, head size 1, float32, additive..bias 1 everywhere); q = 0 e..; v = 0",
        "1 query, 2 keys, head size 1, float32, additive..bias 0 except 1 at the last key)..; v = ",
        "1 query, 2 keys, head size 1, float32, additive..(last 1 key hidden)..; v = ",
        most=4,
    ),
    _one(
        "scale",
        "1 query, 2 keys, head size..no mask, scale..; k = 0 except 1 at the last key; v = 0 exc",
        "1 query, 1 key, head size..no mask, scale..; q = 1 everywhere; k = 1 everywhere; v = 0 e",
        most=6,
        dims=(1, 2),
    ),
    _one("scale 0", "1 query, 1 key, head size 1, float32, no mask, scale 0; q = 0 ", most=2),
    _one(
        "gqa",
        "1 query, 1 key, head size 1, 4 query heads on 2 key heads, float32, no mask; "
        "q = 0 everywhere; k = 0 everywhere; v = 0 everywhere, 1 at [0, 1, -1, 0]",
        "1 query, 1 key, head size 1, 4 query heads on 2 key heads, float32, no mask; "
        "q = 1 everywhere; k = 0 everywhere, 1 at [0, 1, -1, 0]; v = 0 everywhere",
        most=8,
    ),
    _one(
        "batch",
        "1 query, 1 key, head size 1, batch 2, float32, no mask; q = 1 everywhere; "
        "k = 0 everywhere, 1 at [1, 0, -1, 0]; v = 0 everywhere",
        "1 query, 2 keys, head size 1, batch 2, float32, no mask; q = 1 everywhere; "
        "k = 0 everywhere, 1 at [1, 0, -1, 0]; v = 0 except 1 at the last key",
        most=8,
    ),
    _one("dv", f"1 query, 1 key, head size 1 (v 2), {ZEROS}v = 1 everywhere", most=3),
    _one(
        "nan rows",
        "1 query, 1 key, head size 1, float32, boolean mask of rank..(last 1 key hidden); "
        "q = 0 everywhere; k = 0 everywhere; v = 0 everywhere",
        most=2,
    ),
    _one(
        "row 0",
        "2 queries, 1 key, head size 1, float32, no mask; q = 0 except ..at the last query; "
        "k = 1 everywhere; v = ",
        most=4,
    ),
    _one(
        "rows",
        "2 queries, 2 keys, head size 1, float32, no mask; q = 0 except 1 at the last query; "
        "k = 0 except 1 at the last key; v = 0 except 1 at the last key",
        most=8,
    ),
    _one(
        "keys 64",
        f"17 queries, 65 keys, head size 1, {ZEROS}v = 0 e",
        "17 queries, 65 keys, head size 1, float32, boolean mask of rank..(first 64 keys hidden)",
        most=17 * 65 * 2,
    ),
)


def test_the_kernel_itself_is_right() -> None:
    found, count = shrunk("", 0)
    assert not found
    assert count == 150


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("expected", FAULTS, ids=lambda e: e.fault)
def test_the_first_cause_is_the_smallest_problem(expected: Expected, seed: int) -> None:
    found, _ = shrunk(expected.fault, seed)
    assert found, "the fault was not found"
    p = found[0].problem
    assert any(_is(text)(p) for text in expected.any_of), str(p)
    assert elements(p) <= expected.most_elements
    assert p.dim in expected.dims
    assert p.seed == 0
    assert found[0].check.failed


@pytest.mark.parametrize("fault", ["tail", "row 0", "scale", "keys 64", "rows"])
def test_a_shrink_costs_less_than_its_budget(fault: str) -> None:
    kernel = subject(fault)
    search = Search(kernel, [AGREEMENT], quota=150, deadline=None, checked=lambda *_: None)
    search.run(0)
    for failure in search.failures[:4]:
        runs, wanted = _Runs(kernel, failure.check.symptom), failure.check.symptom
        smallest = shrink(failure.problem, runs.fails, kernel.space)
        assert AGREEMENT.check(kernel.case(smallest)).symptom == wanted
        assert runs.count < MAX_RUNS, f"{failure.problem} -> {smallest}"


class _Runs:
    def __init__(self, kernel: Subject, symptom: str) -> None:
        self.kernel, self.symptom, self.count = kernel, symptom, 0

    def fails(self, problem: Problem) -> bool:
        self.count += 1
        check = AGREEMENT.check(self.kernel.case(problem))
        return check.failed and check.symptom == self.symptom


def test_the_budget_of_runs_is_kept_and_the_best_so_far_is_returned() -> None:
    start = Problem(len_q=40, len_k=100, dim=16, dim_v=16, q=Fill(noise="normal", spread=1.0))
    for budget in (0, 1, 5, 20):
        tried: list[Problem] = []

        def fails(p: Problem, tried: list[Problem] = tried) -> bool:
            tried.append(p)
            return p.len_k > 32

        smallest = shrink(start, fails, SPACE, max_runs=budget)
        assert len(tried) <= budget
        assert smallest == start or smallest in tried
        assert smallest.len_k > 32
        assert len(set(tried)) == len(tried), "a problem was run twice"


def test_only_problems_of_the_space_are_tried() -> None:
    space = Space(
        head_dims=(16, 64), dim_v_differs=False, empty_keys=False, scale_none=False,
        max_length=130, options=frozenset({"scale"}),
    )  # fmt: skip
    start = Problem(
        len_q=40, len_k=100, dim=64, dim_v=64, scale=0.5,
        q=Fill(noise="normal", spread=1.0), k=Fill(noise="special", spread=1e-20),
        v=Fill(noise="normal", spread=1.0),
    )  # fmt: skip
    tried: list[Problem] = []

    def fails(p: Problem) -> bool:
        tried.append(p)
        return p.len_k > 32

    smallest = shrink(start, fails, space)
    assert (smallest.len_q, smallest.len_k, smallest.dim, smallest.dim_v) == (1, 33, 16, 16)
    assert smallest.q == smallest.k == smallest.v == Fill()
    for p in tried:
        assert p.dim in space.head_dims
        assert p.dim_v == p.dim
        assert p.len_k > 0
        assert p.scale is not None
        assert p.scale > 0
        assert (p.mask, p.is_causal) == (None, False)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_scores_beyond_what_float8_holds_are_shrunk(dtype: str) -> None:
    """448 is the largest number of e4m3: the plain scores that are tried are no larger."""
    signs = Fill(noise="signs", spread=128.0)
    start = Problem(dtype=dtype, len_q=9, len_k=2, dim=2, dim_v=2, q=signs, k=signs)

    def fails(p: Problem) -> bool:
        x = p.inputs()
        return p.len_q > 1 and bool((np.abs(x.q @ x.k.mT) > 8000).any())

    smallest = shrink(start, fails, replace(SPACE, dtype=dtype))
    assert (smallest.len_q, smallest.dim) == (2, 1)


def test_zero_and_negative_scales_are_not_brought_in() -> None:
    tried: list[float | None] = []

    def fails(p: Problem) -> bool:
        tried.append(p.scale)
        return p.scale not in (None, 1.0)

    for scale in (3.0, 0.5):
        assert (shrink(Problem(scale=scale), fails, SPACE).scale or 0.0) > 0
    assert all(scale is None or scale > 0 for scale in tried)
    # They stay where they are what fails.
    assert shrink(Problem(scale=-0.25), lambda p: (p.scale or 1) < 0, SPACE).scale == -1.0
    assert shrink(Problem(scale=0.0), lambda p: p.scale == 0, SPACE).scale == 0.0


def test_no_minus_zero_is_left() -> None:
    start = Problem(k=Fill(level=-0.0, noise="normal", spread=1.0), v=Fill(level=1.0))
    smallest = shrink(start, lambda p: p.v.level == 1.0, SPACE)
    assert "-0" not in str(smallest)


@pytest.mark.parametrize("fault", ["tail", "no max", "sees next"])
def test_hypothesis_itself_lands_on_a_small_problem(fault: str) -> None:
    kernel = subject(fault)

    def shows(problem: Problem) -> bool:
        check: Check = AGREEMENT.check(kernel.case(problem))
        return check.failed

    settings = hypothesis.settings(
        max_examples=400, database=None, deadline=None, derandomize=True,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    found = hypothesis.find(problems(SPACE), shows, settings=settings)
    assert found.len_k <= 40
    assert found.len_q == 1
    assert (found.batch, found.heads, found.mask, found.layout) == (1, 1, None, "contiguous")


def test_a_size_that_shrinks_apart_from_another_is_no_cause_of_its_own() -> None:
    """The head size shrinks to 1 beside that of V, which most failures have equal to it."""
    kernel = subject("wide v", lse=False)
    search = Search(kernel, [AGREEMENT], quota=150, deadline=None, checked=lambda *_: None)
    search.run(0)
    alike = [f.problem for f in search.failures if f.problem.dim == f.problem.dim_v]
    assert len(alike) > 1
    found = list(causes(search.failures, {"float32": kernel}, AGREEMENT))
    assert found[0].problem.dim != found[0].problem.dim_v
    assert len(found) == 1, [str(cause.problem) for cause in found]
    assert found[0].count == len(search.failures)


@pytest.mark.parametrize(("block", "keys", "smallest"), [(64, 193, 65), (16, 131, 19)])
def test_lengths_shrink_to_the_same_place_in_a_block(block: int, keys: int, smallest: int) -> None:
    """A fault of one length in so many is not found by halving, nor by one less."""

    def fails(p: Problem) -> bool:
        return p.len_k > block and p.len_k % block == keys % block

    space = replace(SPACE, max_length=300)
    assert shrink(Problem(len_q=3, len_k=keys), fails, space).len_k == smallest
