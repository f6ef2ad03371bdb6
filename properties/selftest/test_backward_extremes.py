"""Backwards that keep the contract where little is left of a number, and what says too little.

Each kernel here spends one allowance of docs/bound.md, sections 13 to 16, that an ordinary problem
hides: what underflows before a factor enlarges it again. The bound that forgets it fails them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flashcheck.bounds import bound
from flashcheck.bounds.backward import GradientBound, gradient_bound
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle.backward.definition import gradients
from flashcheck.oracle.backward.float64 import backward
from flashcheck.oracle.float64 import attention

NAMES = ("dq", "dk", "dv")
F = np.float32
Three = tuple[Array, Array, Array]


def limits(x: Inputs, dout: Array, contract: Contract = Contract()) -> GradientBound:
    at = attention(x)
    return gradient_bound(x, dout, at, backward(x, dout, at), bound(x, at, contract), contract)


def ratios(x: Inputs, dout: Array, got: Three, contract: Contract = Contract()) -> dict[str, float]:
    """The largest error / bound of each gradient."""
    limit, exact = limits(x, dout, contract), gradients(x, dout)
    found = {}
    for name, value in zip(NAMES, got, strict=True):
        assert np.isfinite(getattr(limit, name)).all()
        error = np.abs(value - getattr(exact, name).value)
        found[name] = float((error / getattr(limit, name)).max())
    return found


Rng = np.random.Generator


@pytest.fixture
def rng() -> Rng:
    return np.random.Generator(np.random.PCG64(8))


def normal(rng: Rng, dtype: str, *shape: int, size: float = 1.0) -> Array:
    return FORMATS[dtype].round(size * rng.standard_normal(shape))


def kernel(
    x: Inputs, dout: Array, *, before: float = 1.0, after_rounding: bool = False,
    by_head: bool = False,
) -> Three:  # fmt: skip
    """A backward in float32: dS times `before` is rounded in float16, and its products times
    scale / before; P is w / l or, `after_rounding`, that rounded, and l the sum of rounded w.

    `by_head` rounds what each query head gives to dk and dv before the sum.
    """
    group = x.heads_per_kv
    q, k, v = (t.astype(F) for t in (x.q, np.repeat(x.k, group, 1), np.repeat(x.v, group, 1)))
    scale, d = F(x.exact_scale), dout.astype(F)
    s, slope = q @ k.swapaxes(2, 3) * scale, F(1)
    if x.softcap:
        y = np.tanh(s / F(x.softcap))
        s, slope = y * F(x.softcap), 1 - y * y
    w = np.exp(s - s.max(-1, keepdims=True))
    l = (w.astype(np.float16).astype(F) if after_rounding else w).sum(-1, keepdims=True)
    p = (w / l).astype(np.float16 if after_rounding else F).astype(F)
    dp = d @ v.swapaxes(2, 3)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * slope * F(before)
    if x.dtype == "float16":
        p, ds = (t.astype(np.float16).astype(F) for t in (p, ds))
    rest = F(x.exact_scale / before)
    parts = [rest * (ds @ k), rest * (ds.swapaxes(2, 3) @ q), p.swapaxes(2, 3) @ d]
    b, heads = x.k.shape[:2]
    for i in (1, 2):
        part = FORMATS[x.dtype].round(parts[i]) if by_head else parts[i]
        parts[i] = part.reshape(b, heads, group, *part.shape[2:]).sum(2)
    dq, dk, dv = (FORMATS[x.dtype].round(t) for t in parts)
    return dq, dk, dv


def worst(found: list[dict[str, float]]) -> dict[str, float]:
    return {name: max(f[name] for f in found) for name in NAMES}


@pytest.mark.parametrize("small", ["q", "k"])
def test_the_root_of_the_scale_multiplies_what_underflowed(rng: Rng, small: str) -> None:
    """torch's math backend multiplies q and k by the root of the scale, and the gradient by it
    again: a subnormal q or k is off by half of the smallest number, times the root."""
    found = []
    for _ in range(8):
        t: dict[str, NDArray[Any]] = {
            "q": normal(rng, "float32", 1, 1, 3, 2, size=1e-3),
            "k": normal(rng, "float32", 1, 1, 4, 2),
            "v": normal(rng, "float32", 1, 1, 4, 2, size=1e5),
        }
        t[small] = rng.integers(1, 500, t[small].shape) * 2.0**-149
        dout = normal(rng, "float32", 1, 1, 3, 2, size=1e5)
        q, k, v = (torch.tensor(t[n], dtype=torch.float32, requires_grad=True) for n in "qkv")
        with sdpa_kernel(SDPBackend.MATH):
            out = scaled_dot_product_attention(q, k, v, scale=1000.0)
        grads = torch.autograd.grad(out, (q, k, v), torch.tensor(dout, dtype=torch.float32))
        dq, dk, dv = (g.double().numpy() for g in grads)
        found.append(
            ratios(Inputs("float32", t["q"], t["k"], t["v"], scale=1000.0), dout, (dq, dk, dv))
        )
    assert 0.3 < worst(found)["dq" if small == "k" else "dk"] <= 1


@pytest.mark.parametrize(
    ("before", "softcap"),
    [(math.log(2), 0.0), (1 / 32, 32.0), (1 / 32, 1 / 32)],
    ids=["scores in octaves", "the scale over the cap", "the cap"],
)
def test_a_factor_before_score_gradients_are_rounded(
    rng: Rng, before: float, softcap: float
) -> None:
    """dS of scores in octaves is smaller by log(2). With a cap, FlashAttention-2 multiplies dS
    by the scale over the cap, rounds it, and multiplies its products by the cap."""
    found = []
    for _ in range(40):
        q, k, v, dout = (
            normal(rng, "float16", 1, 1, n, 2, size=size)
            for n, size in ((4, 1e-4), (3, 20.0), (3, 1e-3), (4, 10 ** rng.uniform(-4, -2)))
        )
        x = Inputs("float16", q, k, v, scale=1.0, softcap=softcap)
        found.append(ratios(x, dout, kernel(x, dout, before=before)))
    assert 0.5 < worst(found)["dq"] <= 1


def test_a_factor_before_score_gradients_may_overflow() -> None:
    q = np.ones((1, 1, 1, 1))
    x = Inputs("float16", q, np.ones((1, 1, 2, 1)), np.array([[[[180.0], [-180.0]]]]), scale=1.0)
    assert np.isinf(limits(x, q * 600).dq).all()  # |dS| is 54000, times log2(e) 77905
    assert np.isfinite(limits(x, q * 600, Contract(exp_form="exp")).dq).all()


@pytest.mark.parametrize("normalizer", ["after_rounding", "either"])
def test_weights_over_a_sum_of_rounded_weights(normalizer: Any) -> None:
    """They do not sum to 1, here by 1.8 roundings, and delta from them is off with V constant."""
    k = np.full((1, 1, 63, 1), float(F(-0.591555)))
    k[:, :, 0] = 0
    one = np.ones((1, 1, 1, 1))
    x = Inputs("float32", one, k, np.ones(k.shape), scale=1.0)
    contract = Contract(normalizer=normalizer, p_dtype="float16")
    found = ratios(x, one, kernel(x, one, after_rounding=True), contract)
    assert 0.4 < found["dq"] <= 1


# -- B5: query heads add up before the rounding ---------------------------------------------


def test_heads_rounded_one_by_one_leave_the_bound() -> None:
    """32 heads that each lose of dk and dv what one rounding of their sum may lose."""
    group = 32
    q = np.full((1, group, 1, 1), 1.375 * 2.0**-14)
    v = np.array([[[[2.0], [-2.0]]]])
    x = Inputs("float16", q, np.zeros((1, 1, 2, 1)), v, scale=2.0**-10)
    dout = np.ones((1, group, 1, 1))
    assert max(ratios(x, dout, kernel(x, dout)).values()) <= 1
    assert ratios(x, dout, kernel(x, dout, by_head=True))["dk"] > 10
    tiny = np.full((1, group, 1, 1), 5 * 2.0**-24)
    assert max(ratios(x, tiny, kernel(x, tiny)).values()) <= 1
    assert ratios(x, tiny, kernel(x, tiny, by_head=True))["dv"] > 10


# -- gradients about which the bound says too little ----------------------------------------


def vacuous(limit: GradientBound) -> list[bool]:
    """For dq, dk and dv: whether more than half of the elements are."""
    return [bool(getattr(limit, f"vacuous_{name}").mean() > 0.5) for name in NAMES]


def problem(rng: Rng, dtype: str, **tensors: Array) -> Inputs:
    shape = (1, 1, 4, 2)
    q, k, v = (tensors.get(n, normal(rng, dtype, *shape)) for n in "qkv")
    return Inputs(dtype, q, k, v)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_what_is_vacuous(rng: Rng, dtype: str) -> None:
    ones, f = np.ones((1, 1, 4, 2)), FORMATS[dtype]
    x = problem(rng, dtype)
    assert vacuous(limits(x, ones)) == [False, False, False]
    # Nothing but the rounding of the output is left where values hardly differ.
    v = 100 * ones
    v[:, :, 0] += f.ulp(100.0)
    near = problem(rng, dtype, v=v)
    assert vacuous(limits(near, ones)) == [True, True, False]
    # What is 0 whatever the weights are is fixed.
    assert vacuous(limits(problem(rng, dtype, v=100 * ones), ones)) == [False, False, False]
    assert vacuous(limits(x, 0 * ones)) == [False, False, False]
    assert vacuous(limits(x.with_(scale=0.0), ones)) == [False, False, False]
    # The smallest number, or 0: both round a gradient that is less.
    row = x.with_(q=x.q[:, :, :1])
    assert vacuous(limits(row, f.min_subnormal * ones[:, :, :1]))[2]
    # Scores that cancellation ruins leave the weights to chance.
    wild = f.round(2e4 * rng.standard_normal((2, 1, 1, 4, 2)))
    lost = limits(problem(rng, dtype, q=wild[0], k=wild[1]), ones)
    assert vacuous(lost) == [True, True, True]


def test_infinite_is_vacuous(rng: Rng) -> None:
    x = problem(rng, "float32", q=np.full((1, 1, 4, 2), 1e19), k=np.full((1, 1, 4, 2), 1e19))
    ones = np.ones((1, 1, 4, 2))
    assert vacuous(limits(x, ones)) == [True, True, True]
    # With one key P is 1, unless a sink takes a share.
    x = x.with_(k=x.k[:, :, :1], v=x.v[:, :, :1])
    assert vacuous(limits(x, ones)) == [False, False, True]
    assert vacuous(limits(x.with_(sinks=np.zeros(1)), ones)) == [True, True, True]
