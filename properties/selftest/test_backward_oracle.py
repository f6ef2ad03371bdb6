"""The backward's oracle: its tiers against each other, torch.autograd and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

from flashcheck.fills import Fill
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.masks import Mask
from flashcheck.oracle import backward, definition
from flashcheck.oracle.backward import Enclosure, Gradients
from flashcheck.oracle.backward import definition as backward_definition
from flashcheck.oracle.rows import parts
from flashcheck.problem import Problem

NORMAL = Fill(noise="normal", spread=1.0)
BASE = Problem(
    batch=2, heads=4, kv_heads=2, len_q=5, len_k=7, dim=3, dim_v=2, q=NORMAL, k=NORMAL, v=NORMAL,
)  # fmt: skip
ADDITIVE = Mask(kind="additive", hides="random", bias=NORMAL, per_batch=True, per_head=True)

PROBLEMS: dict[str, Problem] = {
    "plain": replace(BASE, kv_heads=4),
    "grouped heads": BASE,
    "one key head": replace(BASE, kv_heads=1),
    "causal": replace(BASE, is_causal=True),
    "causal, more queries": replace(BASE, is_causal=True, len_q=9, len_k=4),
    "scale 0": replace(BASE, scale=0.0),
    "negative scale": replace(BASE, scale=-0.7),
    "large scale": replace(BASE, scale=20.0),
    "boolean mask": replace(BASE, mask=Mask(hides="random", per_batch=True, per_head=True)),
    "a row that sees no key": replace(BASE, mask=Mask(hides="row", amount=2)),
    "no key for anyone": replace(BASE, mask=Mask(hides="all")),
    "keys that no row sees": replace(BASE, mask=Mask(hides="head", amount=3)),
    "bias": replace(BASE, mask=ADDITIVE),
    "large bias": replace(BASE, mask=replace(ADDITIVE, bias=Fill(noise="normal", spread=64.0))),
    "bias of rank 2": replace(BASE, mask=Mask(kind="additive", rank=2, bias=NORMAL)),
    "no keys": replace(BASE, len_k=0),
    "one key": replace(BASE, len_k=1),
    "a large magnitude": replace(BASE, k=Fill(noise="normal", spread=1000.0)),
    "wide values": replace(BASE, v=Fill(noise="wide", spread=20.0)),
}


OPTIONS: dict[str, dict[str, Any]] = {
    "window": {"window": (2, 1)},
    "a window that hides rows": {"window": (0, 0)},
    "ALiBi": {"alibi_slopes": np.array([0.5, 0.25, -1.0, 8.0])},
    "sinks": {"sinks": np.array([0.5, -3.0, 20.0, 1e4])},
    "softcap": {"softcap": 2.0},
    "a small softcap": {"softcap": 0.03125, "scale": 8.0},
    "all": {
        "softcap": 5.0,
        "window": (3, 2),
        "sinks": np.array([0.5, -3.0, 2.0, 0.0]),
        "alibi_slopes": np.array([0.5, 0.25, -1.0, 8.0]),
    },
    "bottom right": {"is_causal": True, "bottom_right": True},
}


def _dout(x: Inputs, seed: int = 3) -> Array:
    return Fill(noise="normal", spread=1.0).evaluate(
        (*x.q.shape[:3], x.v.shape[3]), FORMATS[x.dtype], seed
    )


def _parts(g: Gradients) -> tuple[Enclosure, Enclosure, Enclosure]:
    return g.dq, g.dk, g.dv


def _agree(a: Gradients, b: Gradients) -> None:
    for fast, slow in zip(_parts(a), _parts(b), strict=True):
        error = np.abs((fast.value - slow.value) + (fast.low - slow.low))
        assert np.isfinite(fast.radius).all()
        assert (error <= fast.radius + slow.radius).all()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_tiers_agree_within_their_radii(name: str, dtype: str) -> None:
    x = replace(PROBLEMS[name], dtype=dtype).inputs()
    dout = _dout(x)
    fast, slow = backward.gradients(x, dout), backward_definition.gradients(x, dout)
    _agree(fast, slow)
    for enclosed in _parts(slow):
        assert (enclosed.radius <= 2.0**-100 * np.abs(enclosed.value) + 1e-30).all()


@pytest.mark.parametrize("lengths", [(5, 7), (9, 4)])
@pytest.mark.parametrize("name", OPTIONS)
def test_the_tiers_and_autograd_agree_on_options(name: str, lengths: tuple[int, int]) -> None:
    x = replace(BASE, len_q=lengths[0], len_k=lengths[1]).inputs().with_(**OPTIONS[name])
    dout = _dout(x)
    fast = backward.gradients(x, dout)
    _agree(fast, backward_definition.gradients(x, dout))
    for ours, theirs in zip(_parts(fast), _autograd(x, dout), strict=True):
        np.testing.assert_allclose(ours.value, theirs, rtol=0, atol=1e-12)


def _autograd(x: Inputs, dout: Array) -> tuple[Array, Array, Array]:
    """By torch.autograd, in float64."""
    q, k, v = (torch.tensor(t, requires_grad=True) for t in (x.q, x.k, x.v))
    group = x.heads_per_kv
    s = q @ k.repeat_interleave(group, 1).mT * x.exact_scale
    if x.softcap:
        s = x.softcap * torch.tanh(s / x.softcap)
    for bias in (x.bias, x.alibi):
        if bias is not None:
            s = s + torch.tensor(bias)
    visible = torch.tensor(x.visible)
    p = torch.where(visible, torch.exp(s - s.detach().amax(-1, keepdim=True)), 0.0)
    l = p.sum(-1, keepdim=True)
    if x.sinks is not None:
        l = l + torch.exp(torch.tensor(x.sinks[:, None, None]) - s.detach().amax(-1, keepdim=True))
    p = p / torch.where(l == 0, 1.0, l)
    out = p @ v.repeat_interleave(group, 1)
    dq, dk, dv = torch.autograd.grad((out * torch.tensor(dout)).sum(), (q, k, v))
    return dq.numpy(), dk.numpy(), dv.numpy()


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "no keys"])
def test_autograd_agrees(name: str) -> None:
    x = PROBLEMS[name].inputs()
    dout = _dout(x)
    for ours, theirs in zip(_parts(backward.gradients(x, dout)), _autograd(x, dout), strict=True):
        largest = np.abs(theirs).max(initial=1.0)
        np.testing.assert_allclose(ours.value, theirs, rtol=0, atol=1e-11 * largest)


@pytest.mark.parametrize("name", ["bias", "causal", "a row that sees no key"])
def test_finite_differences_agree(name: str) -> None:
    """The forward's definition, moved by 2^-50 of an input: no formula is shared."""
    x = PROBLEMS[name].inputs()
    dout = _dout(x)
    mp = mpmath.mp.clone()
    mp.prec = 300
    exact = backward_definition.gradients(x, dout)
    step = 2.0**-25

    def loss(y: Inputs) -> Any:
        value = definition.attention(y, digits=60)
        total = mp.mpf(0)
        for at in np.ndindex(dout.shape):
            out = mp.mpf(float(value.out[at])) + mp.mpf(float(value.out_low[at]))
            total += out * mp.mpf(float(dout[at]))
        return total

    for tensor, enclosed in zip("qkv", _parts(exact), strict=True):
        for at in ((0, 0, 0, 0), (1, 1, 3, 1)):
            ends = []
            for sign in (1, -1):
                moved = np.array(getattr(x, tensor))
                moved[at] += sign * step
                ends.append((loss(x.with_(**{tensor: moved})), float(moved[at])))
            slope = (ends[0][0] - ends[1][0]) / (ends[0][1] - ends[1][1])
            assert float(slope) == pytest.approx(float(enclosed.value[at]), abs=1e-12)


def test_zero_where_nothing_is_seen() -> None:
    x = PROBLEMS["a row that sees no key"].inputs()
    for g in (backward.gradients(x, _dout(x)), backward_definition.gradients(x, _dout(x))):
        assert (g.dq.value[:, :, 2] == 0).all()
        assert (g.dq.radius[:, :, 2] == 0).all()
    x = PROBLEMS["keys that no row sees"].inputs()
    for g in (backward.gradients(x, _dout(x)), backward_definition.gradients(x, _dout(x))):
        for enclosed in (g.dk, g.dv):
            assert (enclosed.value[:, :, :3] == 0).all()
            assert (enclosed.radius[:, :, :3] == 0).all()


# -- escalation ----------------------------------------------------------------------------


def _bounds(g: Gradients, share: float) -> tuple[Array, Array, Array]:
    dq, dk, dv = (enclosed.radius / share for enclosed in _parts(g))
    return dq, dk, dv


def test_only_what_is_too_coarse_is_computed_again() -> None:
    x = BASE.inputs()
    dout = _dout(x)
    fast, slow = backward.gradients(x, dout), backward_definition.gradients(x, dout)
    assert backward.gradients(x, dout, bounds=_bounds(fast, 0.009)).tier == "float64"

    dq, dk, dv = _bounds(fast, 0.009)
    dq[1, 2, 3, 0] /= 2  # one element makes its row too coarse
    dv[0, 1, 6, 1] /= 2
    dk[0, 0, 0, 0] = np.inf  # what may be anything needs no radius
    found = backward.gradients(x, dout, bounds=(dq, dk, dv))
    assert found.tier == "float64, mpmath for 1 rows and 1 keys"
    _agree(found, slow)
    changed = found.dq.radius != fast.dq.radius
    assert changed[1, 2, 3].all()
    assert changed.sum() == x.shape[5]
    assert (found.dk.radius != fast.dk.radius).sum() == x.shape[5]
    assert (found.dv.radius != fast.dv.radius)[0, 1, 6].all()
    assert (found.dk.low[0, 1, 6] != 0).any()


def test_a_result_that_is_decided_is_not_computed_again() -> None:
    x = BASE.inputs()
    dout = _dout(x)
    fast = backward.gradients(x, dout)
    coarse = _bounds(fast, 0.5)
    dq, dk, dv = (np.array(enclosed.value) for enclosed in _parts(fast))
    assert backward.gradients(x, dout, bounds=coarse, got=(dq, dk, dv)).tier == "float64"
    dq[0, 0, 1, 0] += 1.5 * coarse[0][0, 0, 1, 0]
    tier = backward.gradients(x, dout, bounds=coarse, got=(dq, dk, dv)).tier
    assert tier == "float64, mpmath for 1 rows and 0 keys"


def test_overflow_has_an_infinite_radius() -> None:
    big = Fill(level=1e300)
    x = replace(BASE, dtype="float64", q=big, k=big).inputs()
    g = backward.gradients(x, _dout(x))
    assert np.isinf(g.dq.radius).all()
    x = BASE.inputs()
    dout = _dout(x)
    dout[0, 0, 0, 0] = math.nan
    g = backward_definition.gradients(x, dout)
    assert np.isinf(g.dv.radius).all()


def test_a_dout_of_another_shape_is_refused() -> None:
    x = BASE.inputs()
    with pytest.raises(ValueError, match=r"dout has shape \[1\]; the output has \[2, 4, 5, 2\]"):
        backward.gradients(x, np.zeros(1))


def test_a_part_of_a_call_is_refused() -> None:
    """Its keys get gradients from rows that are not there."""
    q = np.ones((1, 1, 3, 2))
    ((_, part),) = parts(Inputs("float32", q, q, q), [(0, 0, 1)])
    with pytest.raises(ValueError, match="a part of one"):
        backward.gradients(part, np.ones((1, 1, 1, 2)))
