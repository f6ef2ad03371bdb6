"""Packed batches and paged caches: each sequence is attention by itself."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from flashcheck.bounds import bound
from flashcheck.fills import Fill
from flashcheck.inputs import Inputs, Pages
from flashcheck.kernel import Contract
from flashcheck.law import Subject, laws
from flashcheck.oracle import definition, double_double, float64, rows
from flashcheck.problem import Problem
from flashcheck.shrink import shrink
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

QUERIES, KEYS = (3, 0, 1, 4), (4, 2, 0, 4)
"""One without queries, one without keys, unequal and equal ones."""

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"is_causal": True},
    {"is_causal": True, "bottom_right": True, "window": (1, -1)},
    {"window": (1, 1), "softcap": 2.0},
    {"alibi_slopes": np.array([0.5, 0.25]), "sinks": np.array([0.5, -1.0])},
)


def _normal(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(seed).normal(size=shape)
    return values.astype(np.float32).astype(np.float64)


def packed(**options: Any) -> Inputs:
    return Inputs(
        dtype="float32", q=_normal(0, 1, 2, sum(QUERIES), 4), k=_normal(1, 1, 1, sum(KEYS), 4),
        v=_normal(2, 1, 1, sum(KEYS), 3), enable_gqa=True, seqlens_q=QUERIES, seqlens_k=KEYS,
        **options,
    )  # fmt: skip


def sequences(x: Inputs) -> list[tuple[slice, Inputs]]:
    """Where the queries of each sequence stand, and the sequence as a call of its own."""
    found, i, j = [], 0, 0
    for n, m in zip(QUERIES, KEYS, strict=True):
        if n:
            one = x.with_(
                q=x.q[:, :, i : i + n], k=x.k[:, :, j : j + m], v=x.v[:, :, j : j + m],
                seqlens_q=None, seqlens_k=None,
            )  # fmt: skip
            found.append((slice(i, i + n), one))
        i, j = i + n, j + m
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_packed(options: dict[str, Any]) -> None:
    """Every tier gives what the definition gives on each sequence alone."""
    x = packed(**options)
    every = definition.attention(x)
    for part, one in sequences(x):
        exact = definition.attention(one)
        assert np.array_equal(every.out[:, :, part], exact.out)
        assert np.array_equal(every.lse[:, :, part], exact.lse)
        for at in (float64.attention(x), double_double.attention(x)):
            assert (np.abs(at.out[:, :, part] - exact.out) <= at.out_radius[:, :, part]).all()
            same = at.lse[:, :, part] == exact.lse
            with np.errstate(invalid="ignore"):
                near = np.abs(at.lse[:, :, part] - exact.lse) <= at.lse_radius[:, :, part]
            assert (same | near).all()
        # What is counted over all keys is larger than what one sequence needs, never smaller.
        whole = bound(x, float64.attention(x), Contract(), "cpu")
        alone = bound(one, float64.attention(one), Contract(), "cpu")
        assert (whole.out[:, :, part] >= 0.999 * alone.out).all()
        assert (whole.lse[:, :, part] >= 0.999 * alone.lse).all()


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_parts(options: dict[str, Any]) -> None:
    """A part of a packed call is a dense call of its sequence's keys."""
    x = packed(**options)
    exact = definition.attention(x)
    wanted = [(0, h, i) for h in range(2) for i in range(sum(QUERIES))]
    seen = 0
    for chosen, part in rows.parts(x, wanted):
        got = definition.attention(part)
        for at, (b, h, i) in enumerate(chosen):
            assert np.array_equal(got.out[0, 0, at], exact.out[b, h, i])
            seen += 1
    assert seen == len(wanted)


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_cache(options: dict[str, Any]) -> None:
    """A cache's sequence b is attention over its first cache_seqlens[b] keys."""
    lengths = (3, 0, 6)
    table = np.arange(6).reshape(3, 2)
    x = Inputs(
        dtype="float32", q=_normal(0, 3, 2, 2, 4), k=_normal(1, 3, 1, 6, 4),
        v=_normal(2, 3, 1, 6, 3), enable_gqa=True, seqlens_k=lengths, pages=Pages(3, 8, table),
        **options,
    )  # fmt: skip
    every, fast = definition.attention(x), float64.attention(x)
    for b, n in enumerate(lengths):
        one = x.with_(
            q=x.q[b : b + 1], k=x.k[b : b + 1, :, :n], v=x.v[b : b + 1, :, :n],
            seqlens_k=None, pages=None,
        )  # fmt: skip
        exact = definition.attention(one)
        assert np.array_equal(every.out[b], exact.out[0])
        assert np.array_equal(every.lse[b], exact.lse[0])
        assert (np.abs(fast.out[b] - exact.out[0]) <= fast.out_radius[b]).all()


def test_excluded() -> None:
    mask = np.ones((sum(QUERIES), sum(KEYS)), bool)
    with pytest.raises(ValueError, match="attn_mask and a packed batch exclude each other"):
        packed(mask=mask)
    with pytest.raises(ValueError, match="queries and keys"):
        packed().with_(seqlens_q=(3, 0, 1, 3))


KERNELS = ("numpy_online", "fp32_stats", "triton_decode")


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
@pytest.mark.parametrize("form", ["packed", "paged"])
def test_kernels(name: str, options: dict[str, Any], form: str) -> None:
    """Kernels that take sequences keep every law on them."""
    runner = InProcess(name)
    space = Space(options=frozenset({"cu_seqlens_q", "block_table", *options}))
    subject = Subject(runner, runner.start(), space)
    given: dict[str, Any] = {k: v for k, v in options.items() if k != "bottom_right"}
    fills: dict[str, Any] = {k: Fill(level=0.5) for k in ("alibi_slopes", "sinks") if k in given}
    normal = Fill(noise="normal", spread=1.0)
    shape: dict[str, Any] = {"len_q": sum(QUERIES), "len_k": sum(KEYS), "seqlens_q": QUERIES}
    if form == "paged":  # no block of keys ends where a page does
        shape = {"batch": 4, "len_q": 1, "len_k": 24, "page": 3, "spare": 1}
        given.pop("is_causal", None)
    problem = Problem(
        heads=2, dim=8, dim_v=8, q=normal, k=normal, v=normal, seqlens_k=KEYS, num_splits=2,
        **(given | fills | shape),
    )  # fmt: skip
    interpreted = name.startswith("triton")
    for config in subject.target.configs[: 1 if interpreted else None]:
        case = subject.case(problem, config)
        for law in laws()[: 1 if interpreted else None]:
            if law.applies(case):
                check = law.check(case)
                assert not check.failed, check.message


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_refuse(name: str) -> None:
    attention = import_module(f"flashcheck.kernels.{name}").attention
    q, ends, table = torch.ones(1, 1, 2, 4), torch.tensor([0, 2]), torch.zeros(1, 1)
    excluded = (
        {"attn_mask": torch.ones(2, 2, dtype=torch.bool), "block_table": table},
        {"cu_seqlens_q": ends, "cu_seqlens_k": ends, "block_table": table},
    )
    for options in excluded:
        with pytest.raises(ValueError, match="exclude one another"):
            attention(q, q, q, cache_seqlens=torch.tensor([2]), **options)
    with pytest.raises(ValueError, match="cu_seqlens_q needs cu_seqlens_k"):
        attention(q, q, q, cu_seqlens_k=ends)


def test_what_fails_without_sequences_too_shrinks_to_a_plain_call() -> None:
    space = Space(options=Space().options | {"cu_seqlens_q", "block_table"})
    batch = Problem(len_q=8, len_k=8, seqlens_q=QUERIES, seqlens_k=(4, 1, 0, 3), dim=8)
    cache = Problem(batch=2, len_q=2, len_k=8, seqlens_k=(3, 8), page=4, dim=8)
    for problem in (batch, cache):
        smallest = shrink(problem, lambda p: p.len_k > 0, space)
        assert (smallest.seqlens_k, smallest.len_q, smallest.len_k) == ((), 1, 1)


def test_shared_pages_hold_the_same_until_a_sequence_changes() -> None:
    noise = Fill(noise="normal", spread=1.0)
    p = Problem(
        batch=3, len_q=1, len_k=12, seqlens_k=(8, 8, 3), page=4, spare=1, shared=1,
        q=noise, k=noise, v=noise,
    )  # fmt: skip
    x = p.inputs()
    assert x.pages is not None
    table = x.pages.table
    assert len(set(table[:, 0])) == 1
    assert table[0, 1] != table[1, 1]
    assert (x.k[:, :, :4] == x.k[:1, :, :4]).all()
    assert (x.k[0, :, 4:] != x.k[1, :, 4:]).all()
    # What is the same for all may change, and so may what no page of the table holds.
    assert x.with_(v=x.v * 2).pages is x.pages
    beyond, within = x.k.copy(), x.k.copy()
    beyond[2, :, 4:] += 1
    within[2, :, 3:] += 1  # behind its last key, on a page that is seen by others
    assert x.with_(k=beyond).pages is x.pages
    apart = x.with_(k=within).pages
    assert apart is not None
    assert len(set(apart.table.ravel())) == apart.table.size
    assert apart.count > apart.table.size
