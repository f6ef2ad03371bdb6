"""Parts of a call: each row is what it is in the whole, and long calls need no more memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

import flashcheck
from flashcheck.bounds import bound
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle import definition, device, float64
from flashcheck.oracle.rows import at_risk, parts
from flashcheck.ranking import worst_rows

pytestmark = pytest.mark.cpu

KEYS = 131_072


@st.composite
def calls(draw: st.DrawFn) -> Inputs:
    """Small calls with every option of the contract."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    heads, group = draw(st.sampled_from([(1, 1), (2, 1), (4, 2)]))
    b, lq, lk, d = draw(st.integers(1, 2)), draw(st.integers(1, 7)), draw(st.integers(1, 9)), 4
    q, k, v = (
        rng.standard_normal((b, h, n, d)).astype(np.float32).astype(float)
        for h, n in ((heads, lq), (heads // group, lk), (heads // group, lk))
    )
    mask: np.ndarray[tuple[int, ...], np.dtype[np.float64]] | None = None
    axes = draw(st.sampled_from([(), (lq, lk), (b, 1, 1, lk), (1, heads, lq, 1), (b, 1, lq, lk)]))
    if axes:
        mask = np.where(rng.random(axes) < 0.2, -np.inf, rng.standard_normal(axes))
        mask = mask.astype(np.float32).astype(float)
    slopes, sinks = (rng.standard_normal(heads).astype(np.float32).astype(float) for _ in range(2))
    return Inputs(
        "float32", q, k, v, mask=mask, mask_dtype="float32" if axes else "bool",
        enable_gqa=group > 1, is_causal=not axes and draw(st.booleans()),
        bottom_right=draw(st.booleans()),
        window=draw(st.sampled_from([(-1, -1), (2, 0), (1, -1), (-1, 3)])),
        softcap=draw(st.sampled_from([0.0, 5.0])),
        alibi_slopes=slopes if draw(st.booleans()) else None,
        sinks=sinks if draw(st.booleans()) else None,
    )  # fmt: skip


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(calls(), st.integers(1, 30))
def test_a_row_is_what_it_is_in_the_whole(x: Inputs, scores: int) -> None:
    at = float64.attention(x)
    allowed = bound(x, at, Contract())
    exact = definition.attention(x)
    rows = at_risk(x, 5)
    assert len(set(rows)) == len(rows) == min(5, at.lse.size)
    met = []
    for here, part in parts(x, rows, scores):
        assert part.q.shape[2] == 1 or part.q.shape[2] * part.k.shape[2] <= scores
        index = tuple(zip(*here, strict=True))
        of_part = float64.attention(part)
        of_bound = bound(part, of_part, Contract())
        of_exact = definition.attention(part)
        for whole, cut in (
            (x.visible, part.visible), (at.s, of_part.s), (at.p, of_part.p),
            (at.out, of_part.out), (at.lse, of_part.lse), (allowed.out, of_bound.out),
            (allowed.lse, of_bound.lse), (exact.out, of_exact.out), (exact.lse, of_exact.lse),
        ):  # fmt: skip
            # Products of matrices may be summed in another order.
            np.testing.assert_allclose(cut[0, 0], whole[index], rtol=1e-9, atol=1e-12)
        met += here
    assert met == sorted(rows, key=lambda row: [r[:2] for r in rows].index(row[:2]))


@settings(
    max_examples=150, deadline=None, derandomize=True, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(calls(), st.integers(1, 30))
def test_the_tier_on_a_device_is_the_float64_tier(x: Inputs, scores: int) -> None:
    at, there = float64.attention(x), device.attention(x, "cpu", scores)
    for of_cpu, of_device in (
        (at.out, there.out), (at.lse, there.lse), (at.out_radius, there.out_radius),
        (at.lse_radius, there.lse_radius),
    ):  # fmt: skip
        # A radius holds the unevaluated sums' roundings; an lse near 0 has nothing but them.
        np.testing.assert_allclose(of_device, of_cpu, rtol=1e-6, atol=1e-14)
    exact = definition.attention(x)
    off = np.abs((there.out - exact.out) - exact.out_low)
    assert (off <= there.out_radius + exact.out_radius).all()


def test_a_device_is_as_accurate_as_the_tier_assumes() -> None:
    assert device.faults("cpu") == ()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        found = device.faults("cpu")
    finally:
        torch.set_flush_denormal(False)
    assert "torch on cpu flushes subnormal float64 numbers to zero" in found


@pytest.mark.parametrize("of", ["out", "lse", "nan"])
def test_the_worst_row_is_found(of: str) -> None:
    """Among rows whose scores, and so whose legal errors, are a thousand times larger."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 2, 300, 8)) * np.where(np.arange(300) % 2, 1000.0, 1.0)[:, None]
    k, v = rng.standard_normal((2, 1, 2, 40, 8))
    q, k, v = (a.astype(np.float32).astype(float) for a in (q, k, v))
    x = Inputs("float32", q, k, v, is_causal=True)
    at = float64.attention(x)
    out, lse = (a.astype(np.float32).astype(float) for a in (at.out, at.lse))
    if of == "lse":
        lse[0, 1, 200] += 1e-4
    else:
        out[0, 1, 200, 3] += np.nan if of == "nan" else 1e-4
    rows = worst_rows(x, out, lse, 3, Contract(), "cpu")
    assert len(rows) == 3
    assert rows[0] == (0, 1, 200)


def test_rows_at_risk() -> None:
    """The ends, the largest query, and no row twice."""
    q = np.ones((2, 3, 500, 2))
    q[1, 2, 77] = 9.0
    x = Inputs("float32", q, np.ones((2, 3, 4, 2)), np.ones((2, 3, 4, 2)))
    rows = at_risk(x, 30)
    assert len(set(rows)) == 30
    assert (1, 2, 77) in rows
    assert {0, 499} <= {i for _, _, i in rows}


@pytest.fixture(scope="module")
def long_call() -> tuple[torch.Tensor, ...]:
    """query [1, 2, 512, 32], key and value [1, 1, 131072, 32], and torch's out, bfloat16."""
    random = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, h, n, 32, generator=random).bfloat16()
        for h, n in ((2, 512), (1, KEYS), (1, KEYS))
    )
    return q, k, v, scaled_dot_product_attention(q, k, v, enable_gqa=True)


def test_long_context(long_call: tuple[torch.Tensor, ...]) -> None:
    q, k, v, out = long_call
    inputs = flashcheck.inputs_of(q, k, v, enable_gqa=True)
    tracemalloc.start()
    check = flashcheck.assert_within_bound(out, inputs, rows=12)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert check.counts["elements"] == 12 * 32
    # The scores of all rows alone would take 1 GiB.
    assert peak < 2**30


def test_long_context_that_is_wrong(long_call: tuple[torch.Tensor, ...]) -> None:
    """One row is off; a call that is judged by rows says where, in the whole call."""
    q, k, v, out = long_call
    largest = q.float().abs().sum(-1)[0].flatten().argmax()
    h, i = divmod(int(largest), 512)
    wrong = out.clone()
    wrong[0, h, i] += 0.5
    inputs = flashcheck.inputs_of(q, k, v, enable_gqa=True)
    with pytest.raises(flashcheck.CheckFailed, match=f"b=0, h={h}, query={i}") as failed:
        flashcheck.assert_within_bound(wrong, inputs, rows=3)
    assert failed.value.check.worst is not None
    assert failed.value.check.worst.index[:3] == (0, h, i)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_one_row_of_many_on_cuda() -> None:
    """2^28 scores: the one row that is off is found, though it is no row at risk."""
    assert device.faults("cuda") == ()
    q, k, v = torch.randn(3, 1, 16, 4096, 64, device="cuda", dtype=torch.bfloat16)
    out = scaled_dot_product_attention(q, k, v)
    inputs = flashcheck.inputs_of(q, k, v)
    flashcheck.assert_within_bound(out, inputs, rows=4)
    out[0, 11, 1234, 5] += 0.03
    with pytest.raises(flashcheck.CheckFailed, match="b=0, h=11, query=1234"):
        flashcheck.assert_within_bound(out, inputs, rows=4)
