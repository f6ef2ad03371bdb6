"""kernels/merge.py: what has to hold of merging partial results, in NumPy and in torch."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from importlib import import_module
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
import torch

import flashcheck
from flashcheck import oracle, tensors
from flashcheck.bounds import bound
from flashcheck.fills import Fill
from flashcheck.kernel import Contract
from flashcheck.masks import Mask
from flashcheck.oracle import float64
from flashcheck.problem import Problem

pytestmark = pytest.mark.cpu

State = tuple[Any, Any, Any]
merge = import_module("flashcheck.kernels.merge").merge
attention = import_module("flashcheck.kernels.numpy_naive").attention

NORMAL = Fill(noise="normal", spread=3.0)
RISING = Problem(
    heads=2, kv_heads=2, len_q=5, len_k=40, dim=8, dim_v=8, q=Fill(level=1.0),
    k=Fill("stairs", level=1.0, noise="normal", spread=1.0), v=NORMAL,
)  # fmt: skip


def _states(seed: int, xp: Any, dtype: str) -> list[State]:
    """Three states of the same rows, [2, 5, 1] and [2, 5, 4], one of them without a key there."""
    rng = np.random.Generator(np.random.PCG64(seed))
    states: list[State] = []
    for size in (1.0, 30.0, 200.0):
        m = rng.normal(size=(2, 5, 1)) * size
        l, acc = rng.uniform(1, 40, (2, 5, 1)), rng.normal(size=(2, 5, 4)) * 10
        empty = rng.random((2, 5, 1)) < 0.3
        parts = np.where(empty, -np.inf, m), np.where(empty, 0, l), np.where(empty, 0, acc)
        m, l, acc = (x.astype(dtype) for x in parts)
        to = torch.from_numpy if xp is torch else np.asarray
        states.append((to(m), to(l), to(acc)))
    return states


def _same(a: State, b: State) -> bool:
    return all(bool((x == y).all()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("xp", [np, torch])
@pytest.mark.parametrize("seed", range(20))
def test_commutes_and_no_key_is_the_identity(seed: int, xp: Any, dtype: str) -> None:
    a, b, c = _states(seed, xp, dtype)
    nothing: State = (xp.full_like(a[0], -np.inf), xp.zeros_like(a[1]), xp.zeros_like(a[2]))
    for x, y in permutations((a, b, c, nothing), 2):
        assert _same(merge(x, y), merge(y, x))
        assert all(part.dtype == x[0].dtype for part in merge(x, y))
    for x in (a, b, c, nothing):
        assert _same(merge(x, nothing), x)
        assert _same(merge(nothing, x), x)


@pytest.mark.parametrize("xp", [np, torch])
@pytest.mark.parametrize("seed", range(20))
def test_is_associative_to_the_bit_where_no_sum_is_rounded(seed: int, xp: Any) -> None:
    """One maximum and whole sums; or maxima so far apart that the smaller are nothing."""
    for apart in (0.0, 1000.0):
        a, b, c = (
            (xp.full_like(m, i * apart), xp.round(l), xp.round(acc))
            for i, (m, l, acc) in enumerate(_states(seed, xp, "float32"))
        )
        assert _same(merge(merge(a, b), c), merge(a, merge(b, c)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(6))
def test_is_associative_within_the_bounds(seed: int, dtype: str) -> None:
    """Results of three parts of the keys, merged in every order, are that of all keys."""
    mask = Mask(hides=("random", "head", "tail")[seed % 3], amount=15, per_head=True)
    p = replace(RISING, dtype=dtype, seed=seed, mask=mask)
    if seed > 3:
        p = replace(p, q=NORMAL, k=NORMAL)
    x = p.inputs()
    at = float64.attention(x)
    limit = bound(x, at, Contract())
    exact = oracle.evaluate(x, at, limit.out, limit.lse)
    given = tensors.place(x)
    ends = (0, 3 + seed, 20, 40)
    parts: list[State] = []
    for start, end in pairwise(ends):
        keys = slice(start, end)
        out, lse = attention(
            given["q"], given["k"][:, :, keys], given["v"][:, :, keys],
            attn_mask=given["mask"].expand(1, 2, 5, 40)[..., keys],
        )  # fmt: skip
        parts.append((lse[..., None], torch.ones_like(lse[..., None]), out))
    for order in permutations(parts):
        for m, l, acc in (reduce(merge, order), merge(order[0], merge(order[1], order[2]))):
            out, lse = acc / l.masked_fill(l == 0, 1.0), (m + torch.log(l))[..., 0]
            for got, want, low, radius, most in (
                (out, exact.out, exact.out_low, exact.out_radius, limit.out),
                (lse, exact.lse, exact.lse_low, exact.lse_radius, limit.lse),
            ):
                with np.errstate(invalid="ignore"):
                    error = np.abs((got.double().numpy() - want) - low)
                error = np.where(got.double().numpy() == want, 0.0, error)
                assert (error <= most + radius).all()


@pytest.mark.parametrize("num_splits", [2, 3, 40, 43, 600])
@pytest.mark.parametrize("kernel", ["numpy_online", "fp32_stats"])
@pytest.mark.parametrize("hides", ["nothing", "head", "tail", "all"])
def test_splits_without_a_key(kernel: str, num_splits: int, hides: Any) -> None:
    """More splits than keys, and splits all of whose keys are hidden."""
    mask = Mask(hides=hides, amount=25, per_query=False)
    p = replace(RISING, num_splits=num_splits, mask=mask)
    for problem in (p, replace(p, sinks=Fill("stairs", level=9.0)), replace(p, len_k=0, mask=None)):
        for law in ("agreement", "split_independence"):
            flashcheck.check(kernel, problem, property=law).raise_if_failed()
