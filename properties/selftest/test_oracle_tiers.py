"""The oracle's tiers against each other: double-double, the mpmath definition, Arb balls."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest

from flashcheck.fills import NOISES, PATTERNS, Fill
from flashcheck.formats import DTYPES, Array
from flashcheck.inputs import Inputs
from flashcheck.masks import Mask
from flashcheck.oracle import definition, double_double, float64, pairs, selfcheck
from flashcheck.oracle.pairs import ETA, U
from flashcheck.oracle.value import Value
from flashcheck.problem import Problem

MP = mpmath.mp.clone()
MP.prec = 400


def _exact(high: Any, low: Any = 0.0) -> Any:
    return MP.mpf(float(high)) + MP.mpf(float(low))


def _random(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.Generator(np.random.PCG64(seed)).normal(size=shape)


def _inputs(seed: int = 0, *, lq: int = 3, lk: int = 7, d: int = 4, **options: Any) -> Inputs:
    q, k, v = _random((1, 2, lq, d), seed), _random((1, 2, lk, d), seed + 1), None
    v = _random((1, 2, lk, 3), seed + 2)
    return Inputs("float64", q, k, v, **options)


def _compare(inputs: Inputs, *, may_be_infinite: bool = False) -> Array:
    """Check double-double against the definition; radius / sum p|v| of every element."""
    fast, slow = double_double.attention(inputs), definition.attention(inputs)
    with np.errstate(all="ignore"):
        for name in ("out", "lse"):
            a, a_low = getattr(fast, name), getattr(fast, name + "_low")
            b, b_low = getattr(slow, name), getattr(slow, name + "_low")
            radius, slow_radius = getattr(fast, name + "_radius"), getattr(slow, name + "_radius")
            assert not np.isnan(radius).any()
            assert (radius >= 0).all()
            if not may_be_infinite:
                assert np.isfinite(radius).all()
            error = np.where(a == b, 0.0, a - b) + (a_low - b_low)
            held = np.abs(error) <= radius + slow_radius
            assert (held | np.isinf(radius)).all(), (name, np.max(error / radius))
    weights = definition.attention(inputs.with_(v=np.abs(inputs.v))).out
    finite = np.isfinite(fast.out_radius) & (weights > 1e-200)
    return np.asarray(fast.out_radius[finite] / weights[finite])


# -- building blocks -----------------------------------------------------------------------


def test_sums_and_products_are_error_free() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    a = rng.normal(size=500) * np.exp2(rng.integers(-300, 300, 500))
    b = rng.normal(size=500) * np.exp2(rng.integers(-300, 300, 500))
    total, product = pairs.two_sum(a, b), pairs.two_prod(a, b)
    for i in range(a.size):
        x, y = Fraction(float(a[i])), Fraction(float(b[i]))
        assert Fraction(float(total[0][i])) + Fraction(float(total[1][i])) == x + y
        assert Fraction(float(product[0][i])) + Fraction(float(product[1][i])) == x * y


def test_products_that_underflow_are_within_five_eta() -> None:
    rng = np.random.Generator(np.random.PCG64(2))
    a = rng.normal(size=3000) * np.exp2(rng.integers(-560, -420, 3000))
    b = rng.normal(size=3000) * np.exp2(rng.integers(-560, -420, 3000))
    p, e = pairs.two_prod(a, b)
    for i in range(a.size):
        error = (
            Fraction(float(p[i]))
            + Fraction(float(e[i]))
            - Fraction(float(a[i])) * Fraction(float(b[i]))
        )
        assert abs(error) <= 5 * Fraction(ETA)


def _pairs(seed: int) -> tuple[Array, Array]:
    rng = np.random.Generator(np.random.PCG64(seed))
    high = rng.normal(size=400) * np.exp2(rng.integers(-6, 6, 400))
    return pairs.two_sum(high, np.spacing(high) * rng.uniform(-0.5, 0.5, 400))


def test_double_double_arithmetic_keeps_its_bounds() -> None:
    x, y = _pairs(3), _pairs(4)
    # Half of the sums cancel.
    y_sum = (np.where(np.arange(400) % 2, y[0], -x[0] * (1 + 2.0**-50)), y[1])
    y_sum = pairs.two_sum(*y_sum)
    positive = (np.abs(y[0]) + 0.5, y[1])
    positive = pairs.two_sum(*positive)
    total, shifted = pairs.dd_add(x, y_sum), pairs.dd_add_d(x, y_sum[0])
    product, quotient = pairs.dd_mul(x, y), pairs.dd_div(x, positive)
    for i in range(400):
        a, b = _exact(x[0][i], x[1][i]), _exact(y[0][i], y[1][i])
        c, p = _exact(y_sum[0][i], y_sum[1][i]), _exact(positive[0][i], positive[1][i])
        c_high = _exact(y_sum[0][i])
        for z, exact, limit in (
            (total, a + c, 3 * (abs(a) + abs(c))),
            (shifted, a + c_high, 2 * abs(a) + abs(c_high)),
            (product, a * b, 8 * abs(a * b)),
            (quotient, a / p, 13 * abs(a / p)),
        ):
            assert abs(_exact(z[0][i], z[1][i]) - exact) <= U * limit
            assert z[0][i] == z[0][i] + z[1][i]


def test_constants() -> None:
    step = MP.log(2) / 32
    parts = [pairs._C1, pairs._C2, pairs._C3]
    assert abs(sum(MP.mpf(c) for c in parts) - step) < MP.mpf(2) ** -132
    n = np.arange(-34441.0, 200.0, 7.0)
    for c in parts[:2]:
        assert all(Fraction(float(m * c)) == Fraction(float(m)) * Fraction(c) for m in n)
    for j in range(32):
        exact = MP.mpf(2) ** (MP.mpf(j) / 32)
        value = _exact(pairs._TABLE_HIGH[j], pairs._TABLE_LOW[j])
        assert abs(value - exact) <= U * exact
    for d in (1, 2, 3, 4, 64, 80, 127, 4096, 10**6 + 3):
        exact = 1 / MP.sqrt(d)
        assert abs(_exact(*pairs.inverse_sqrt(d)) - exact) <= U * exact


def _exp_points() -> Array:
    grid = np.linspace(-746.0, 1.0, 5000)
    step = math.log(2) / 32
    # Around the ends of the argument's reduction, multiples of it, and next to zero.
    halves = (np.arange(-34440, 46, 37) + 0.5) * step
    multiples = np.arange(-34440, 46, 41) * step
    zero = np.concatenate([s * np.exp2(-np.linspace(0, 1074, 300)) for s in (-1.0, 1.0)])
    near = [np.nextafter(x, s) for x in (halves, multiples) for s in (-1e9, 1e9)]
    points = np.concatenate([grid, halves, multiples, zero, *near, [-745.13, -708.4, 0.0, -0.0]])
    return np.asarray(np.clip(points, -746.0, 1.0))


def test_exp_keeps_its_bound_everywhere() -> None:
    x = _exp_points()
    low = np.spacing(x) * np.resize([0.0, 0.5, -0.5, 0.3], x.size)
    x, low = pairs.two_sum(x, np.where(np.abs(x) < 1e-290, 0.0, low))
    x, low = np.clip(x, -746.0, 1.0), np.where(np.abs(x) >= 746.0, 0.0, low)
    (f, f_low), k = pairs.exp_parts((x, low))
    high, rest = pairs.dd_exp((x, low))
    worst = 0.0
    for i in range(x.size):
        exact = MP.exp(_exact(x[i], low[i]))
        scaled = MP.ldexp(exact, -int(k[i]))
        worst = max(worst, float(abs(_exact(f[i], f_low[i]) - scaled) / scaled))
        assert abs(_exact(high[i], rest[i]) - exact) <= 5 * U * exact + ETA
    assert U / 4 < worst <= 5 * U


def test_log_keeps_its_bound() -> None:
    x = np.concatenate([np.exp2(np.linspace(0, 30, 500)), 1 + np.exp2(-np.linspace(1, 52, 60))])
    x, low = pairs.two_sum(x, np.spacing(x) * 0.37)
    high, rest, certain = pairs.dd_log((x, low))
    assert certain.all()
    for i in range(x.size):
        exact = MP.log(_exact(x[i], low[i]))
        assert abs(_exact(high[i], rest[i]) - exact) <= U * (14 + abs(exact))


def test_log_does_not_trust_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    log = np.log
    monkeypatch.setattr(np, "log", lambda x: log(x) * (1 + 2.0**-45))
    x = np.array([2.0, 1e5, 1e9])
    high, low, certain = pairs.dd_log((x, np.zeros(3)))
    assert certain.all()
    for i in range(3):
        exact = MP.log(_exact(x[i]))
        assert abs(_exact(high[i], low[i]) - exact) <= U * (14 + abs(exact))
    monkeypatch.setattr(np, "log", lambda x: log(x) + 1e-9)
    assert not pairs.dd_log((x, np.zeros(3)))[2].any()


# -- double-double against the definition --------------------------------------------------


def _problem(pattern: Any, noise: Any, dtype: str, seed: int) -> Problem:
    """Patterns and noises in all three tensors; moderate scores in most."""
    top = {"float64": 2.0**-1022, "float32": 2.0**-125, "bfloat16": 2.0**-125}.get(dtype, 2.0**-12)
    spread = {"special": top, "wide": 6.0}.get(noise, 1.0)
    q = Fill(pattern, 2.0, 0.25, at=1, period=2, noise=noise, spread=spread)
    k = Fill(pattern, -1.5, 0.5, at=-1, period=3, noise=noise, spread=spread)
    v = Fill(pattern, 1.0, -1.0, at=2, period=2, noise=noise, spread=max(spread, 1e-30))
    return Problem(
        dtype=dtype,
        len_q=2,
        len_k=6,
        dim=3,
        dim_v=2,
        q=q,
        k=k,
        v=v,
        seed=seed,
        is_causal=seed % 5 == 4,
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_fill(dtype: str) -> None:
    ratios = []
    for seed, (pattern, noise) in enumerate((p, n) for p in PATTERNS for n in NOISES):
        ratios.append(_compare(_problem(pattern, noise, dtype, seed).inputs()))
    together = np.concatenate(ratios)
    assert together.size > 150
    assert np.median(together) < 1e-28
    assert np.max(together) < 1e-26


NORMAL = Fill(noise="normal", spread=1.0)
MASKS = [
    Mask(hides="random", per_batch=True, per_head=True),
    Mask(hides="row", amount=1),
    Mask(hides="all", kind="additive"),
    Mask(hides="tail", amount=2, rank=2),
    Mask(hides="head", amount=3, rank=1),
    Mask(hides="window", amount=1, kind="additive", bias=Fill(noise="normal", spread=3.0)),
    Mask(hides="random", kind="additive", bias=Fill(noise="wide", spread=9.0), dtype="query"),
    Mask(kind="additive", bias=Fill(level=-3e4, noise="normal", spread=1.0), rank=3, per_head=True),
    None,
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mask", MASKS, ids=lambda m: f"{m.kind}-{m.hides}-{m.rank}" if m else "-")
def test_masks_with_grouped_heads(mask: Mask | None, dtype: str) -> None:
    problem = Problem(
        dtype=dtype, batch=2, heads=4, kv_heads=2, len_q=3, len_k=5, dim=3, dim_v=2,
        q=NORMAL, k=NORMAL, v=NORMAL, seed=7, mask=mask, is_causal=mask is None,
    )  # fmt: skip
    ratios = _compare(problem.inputs())
    assert ratios.size == 0 or np.median(ratios) < 1e-28 * (1e4 if mask and mask.rank == 3 else 1)


@pytest.mark.parametrize("scale", [None, 0.0, -0.0, -0.7, 1.0, 1e-30, 300.0, -2e4])
@pytest.mark.parametrize("d", [1, 3, 8])
def test_scales(scale: float | None, d: int) -> None:
    ratios = _compare(_inputs(d, d=d, scale=scale))
    assert np.median(ratios) < 1e-29 * (1 + abs(scale or 0.0))


@pytest.mark.parametrize(
    "size", [1e-320, 1e-200, 1e-160, 1e-154, 1e-5, 1e2, 300.0, 1e5, 1e12, 1e14]
)
def test_magnitudes(size: float) -> None:
    """Scores of `size` squared, from subnormal products to beyond exp's range."""
    inputs = _inputs(11)
    inputs = inputs.with_(q=inputs.q * size, k=inputs.k * size)
    ratios = _compare(inputs)
    assert np.median(ratios) < 1e-29 * (1 + size**2)


def test_weights_at_the_edge_of_underflow() -> None:
    """Keys of weight exp(-600) to exp(-800): they alone carry the value."""
    k = np.concatenate([[0.0], -np.linspace(600.0, 800.0, 40)]).reshape(1, 1, -1, 1)
    for size in (1.0, 1e300 / 2**40, 1e-10):
        v = np.where(k < 0, size, 0.0)
        inputs = Inputs("float64", np.ones((1, 1, 1, 1)), k, v, scale=1.0)
        value = double_double.attention(inputs)
        assert value.out_radius.max() <= 200 * ETA * max(size, 1.0) + 1e-27 * value.out.max()
        _compare(inputs)
        for j in (5, 15, 20, 28, 29, 30, 31, 35):
            keys = [0, j]
            _compare(inputs.with_(k=k[:, :, keys], v=v[:, :, keys]))


def test_a_far_key_of_no_weight_costs_nothing() -> None:
    inputs = _inputs(5)
    k = inputs.k.copy()
    k[:, :, 3] = -1e30 * np.sign(inputs.q[:, :, :1])[..., 0, :]
    near = double_double.attention(inputs.with_(k=k, q=np.repeat(inputs.q[:, :, :1], 3, 2)))
    assert near.out_radius.max() < 1e-28


@pytest.mark.parametrize("size", [1e3, 1e8, 1e20])
def test_cancellation_in_scores(size: float) -> None:
    """Terms of q.k of `size` squared that leave a few units: the radius must follow them."""
    q, k = _random((1, 4, 3, 8), 1) * size, _random((1, 4, 9, 8), 2) * size
    q[..., 4:] = np.roll(q[..., :4], 1, axis=-1)
    k[..., 4:] = -np.roll(k[..., :4], 1, axis=-1) * (1 + 2.0**-45 * np.sign(k[..., :4]))
    k[..., 4:] += np.spacing(k[..., 4:]) * 3
    inputs = Inputs("float64", q, k, _random((1, 4, 9, 2), 3), scale=min(1.0, 1e14 / size**2))
    assert np.median(_compare(inputs)) > 1e-26


def test_cancellation_in_values() -> None:
    k = np.zeros((1, 1, 8, 2))
    v = np.array([1e8, -1e8, 1e-8, 3.0, -3.0, 7e5, -7e5, 2e-9]).reshape(1, 1, 8, 1)
    _compare(Inputs("float64", np.ones((1, 1, 1, 2)), k, v))


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    mask = _random((2, 1, 5, 33), 3) > -1.0
    inputs = Inputs(
        "float64", _random((2, 4, 5, 17), 0), _random((2, 2, 33, 17), 1),
        _random((2, 2, 33, 9), 2), mask=mask, enable_gqa=True,
    )  # fmt: skip
    whole = double_double.attention(inputs)
    for block in (1, 64, 100, 1000):
        monkeypatch.setattr(double_double, "_BLOCK", block)
        part = double_double.attention(inputs)
        for name in ("out", "out_low", "lse", "lse_low"):
            assert np.array_equal(getattr(whole, name), getattr(part, name))
    rows = [(0, 3, 2), (1, 1, 4)]
    slow = definition.attention(inputs, rows)
    for row in rows:
        error = (whole.out[row] - slow.out[row]) + (whole.out_low[row] - slow.out_low[row])
        assert (np.abs(error) <= whole.out_radius[row] + slow.out_radius[row]).all()


def test_long_rows() -> None:
    inputs = Inputs("float32", _random((1, 1, 1, 16), 0).astype(np.float32).astype(np.float64),
                    _random((1, 1, 700, 16), 1).astype(np.float32).astype(np.float64),
                    _random((1, 1, 700, 2), 2).astype(np.float32).astype(np.float64))  # fmt: skip
    assert np.max(_compare(inputs)) < 1e-28


def test_magnitudes_in_blocks() -> None:
    """Their sums in float64 do not depend on where a block ends; the last key counts too."""
    q, k, v = _random((1, 2, 3, 64), 0), _random((1, 2, 300, 64), 1), _random((1, 2, 300, 5), 2)
    v[0, 1, 299] = -1e300
    at = float64.attention(Inputs("float64", q, k, v))
    assert np.allclose(at.raw, np.abs(q) @ np.abs(k).swapaxes(2, 3), rtol=1e-14, atol=0.0)
    assert np.allclose(at.abs_out, at.p @ np.abs(v), rtol=1e-14, atol=0.0)
    far = float64.attention(Inputs("float64", q, 1e4 * k, v))
    assert (far.p[0, 1, :, 299] == 0).all()
    assert (far.out_radius[0, 1] >= 300 * 2.0**-1022 * 1e300).all()


# -- rows and elements that are special ----------------------------------------------------


@pytest.mark.parametrize("tier", [double_double.attention, definition.attention])
def test_no_keys(tier: Any) -> None:
    mask = np.array([[True, False], [False, False]])
    k = np.array([[1.0, 2.0], [np.nan, np.inf]]).reshape(1, 1, 2, 2)
    v = np.array([[5.0], [np.nan]]).reshape(1, 1, 2, 1)
    value: Value = tier(Inputs("float64", np.ones((1, 1, 2, 2)), k, v, mask=mask))
    assert value.out.ravel().tolist() == [5.0, 0.0]
    assert value.lse[0, 0, 1] == -np.inf
    assert value.out_low[0, 0, 1, 0] == value.lse_low[0, 0, 1] == 0.0
    assert value.out_radius[0, 0, 1, 0] == value.lse_radius[0, 0, 1] == 0.0
    assert np.isfinite(value.out_radius).all()
    assert np.isfinite(value.lse_radius).all()
    none = Inputs("float64", np.ones((1, 2, 3, 4)), np.ones((1, 1, 0, 4)), np.ones((1, 1, 0, 5)))
    value = tier(none)
    assert value.out.shape == (1, 2, 3, 5)
    assert not value.out.any()
    assert (value.lse == -np.inf).all()
    assert not value.out_radius.any()
    assert not value.lse_radius.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["q", "k", "v"])
def test_an_infinity_or_nan_that_is_seen_claims_nothing(tensor: str, bad: float) -> None:
    inputs = _inputs(1)
    broken = getattr(inputs, tensor).copy()
    broken[0, 1, 2, 1] = bad
    inputs = inputs.with_(**{tensor: broken})
    for value in (double_double.attention(inputs), definition.attention(inputs)):
        touched = np.zeros((1, 2, 3), bool)
        touched[0, 1, 2 if tensor == "q" else slice(None)] = True
        assert (np.isinf(value.out_radius).all(-1) == touched).all()
        assert (np.isinf(value.lse_radius) == touched).all()


def test_outside_the_domain_claims_nothing() -> None:
    inputs = _inputs(2)
    for changes in (
        {"q": inputs.q * 1e300, "k": inputs.k * 1e100},
        {"k": inputs.k * 1e306},
        {"v": inputs.v * 1e305},
        {"q": inputs.q * 1e200, "k": inputs.k * 1e80, "scale": 1e30},
        {"q": inputs.q * 1e40},
    ):
        outside = inputs.with_(**changes)
        value = double_double.attention(outside)
        assert np.isinf(value.out_radius).any()
        _compare(outside, may_be_infinite=True)


# -- the definition ------------------------------------------------------------------------


def test_definition_computes_only_the_rows_asked_for() -> None:
    before = (mpmath.mp.prec, mpmath.mp.dps)
    inputs = _inputs(3)
    whole, part = definition.attention(inputs), definition.attention(inputs, [(0, 1, 2)])
    assert (mpmath.mp.prec, mpmath.mp.dps) == before
    assert np.array_equal(part.out[0, 1, 2], whole.out[0, 1, 2])
    assert np.isnan(part.out).sum() == part.out.size - 3
    assert np.isnan(part.lse_radius).sum() == part.lse.size - 1
    assert (whole.out_radius <= 2.0**-104).all()
    assert whole.tier == "mpmath"


@pytest.mark.parametrize("size", [1.0, 1e5, 1e80, 1e154])
def test_definition_adapts_to_the_magnitude_of_scores(size: float) -> None:
    """Scores up to 1e308 that cancel to a few units: more digits change nothing."""
    q = np.array([size, size, 1.0]).reshape(1, 1, 1, 3)
    k = np.array([[size, -size, 0.3], [-size, size, -0.9], [size, -size, 1e-3]]).reshape(1, 1, 3, 3)
    inputs = Inputs("float64", q, k, np.array([1.0, -2.0, 7.0]).reshape(1, 1, 3, 1), scale=1.0)
    value, fine = definition.attention(inputs), definition.attention(inputs, digits=90)
    expect = [MP.exp(MP.mpf(x)) for x in (0.3, -0.9, 1e-3)]
    exact = (expect[0] - 2 * expect[1] + 7 * expect[2]) / sum(expect)
    out = _exact(value.out[0, 0, 0, 0], value.out_low[0, 0, 0, 0])
    lse = _exact(value.lse[0, 0, 0], value.lse_low[0, 0, 0])
    assert abs(out - exact) <= value.out_radius[0, 0, 0, 0] < 1e-30
    assert abs(lse - MP.log(sum(expect))) <= value.lse_radius[0, 0, 0] < 1e-30
    assert abs(value.out_low - fine.out_low) <= value.out_radius


def _arb_attention(
    inputs: Inputs, visible: list[list[list[bool]]], bias: Any
) -> tuple[list[Any], list[Any]]:
    """The same definition in ball arithmetic; visible[h][i][j], batch 1, heads repeated."""
    flint = pytest.importorskip("flint")
    arb = flint.arb
    flint.ctx.prec = 700
    outs, lses = [], []
    hq, hkv = inputs.q.shape[1], inputs.k.shape[1]
    d = inputs.q.shape[3]
    scale = arb(1) / arb(d).sqrt() if inputs.scale is None else arb(inputs.scale)
    for h in range(hq):
        group = (h * hkv) // hq
        for i in range(inputs.q.shape[2]):
            weights, total = [], arb(0)
            keys = [j for j, seen in enumerate(visible[h][i]) if seen]
            for j in keys:
                terms = zip(inputs.q[0, h, i], inputs.k[0, group, j], strict=True)
                s = scale * sum((arb(float(a)) * arb(float(b)) for a, b in terms), arb(0))
                w = (s + arb(float(bias(h, i, j)))).exp()
                weights.append(w)
                total += w
            for e in range(inputs.v.shape[3]):
                column = [arb(float(inputs.v[0, group, j, e])) for j in keys]
                acc = sum((w * x for w, x in zip(weights, column, strict=True)), arb(0))
                outs.append(acc / total)
            lses.append(total.log())
    return outs, lses


def _check_against_arb(value: Value, outs: list[Any], lses: list[Any]) -> None:
    import flint

    for high, low, radius, balls in (
        (value.out, value.out_low, value.out_radius, outs),
        (value.lse, value.lse_low, value.lse_radius, lses),
    ):
        assert high.size == len(balls)
        for a, b, r, ball in zip(high.ravel(), low.ravel(), radius.ravel(), balls, strict=True):
            error = abs(flint.arb(float(a)) + flint.arb(float(b)) - ball)
            assert error.upper() <= flint.arb(float(r))
            assert r <= 1e-27 * max(1.0, abs(float(a)))


@pytest.mark.parametrize("tier", [definition.attention, double_double.attention])
def test_against_arb_balls(tier: Any) -> None:
    pytest.importorskip("flint")

    def nothing(h: int, i: int, j: int) -> float:
        return 0.0

    plain = _inputs(20)
    everything = [[[True] * 7 for _ in range(3)] for _ in range(2)]
    _check_against_arb(tier(plain), *_arb_attention(plain, everything, nothing))

    causal = _inputs(21, lq=4, lk=3, scale=-1.75, is_causal=True)
    # Top left: query i sees keys 0 .. i.
    triangle = [
        [True, False, False], [True, True, False], [True, True, True], [True, True, True]
    ]  # fmt: skip
    _check_against_arb(tier(causal), *_arb_attention(causal, [triangle] * 2, nothing))

    additive = np.array([[0.5, -np.inf, -2.25, 40.0], [-np.inf, 1e-3, 0.0, -7.0]])
    gqa = Inputs(
        "float64", _random((1, 6, 2, 5), 22), _random((1, 2, 4, 5), 23), _random((1, 2, 4, 1), 24),
        mask=additive, mask_dtype="float64", enable_gqa=True,
    )  # fmt: skip
    seen = [[True, False, True, True], [False, True, True, True]]
    _check_against_arb(tier(gqa), *_arb_attention(gqa, [seen] * 6, lambda h, i, j: additive[i, j]))

    large = _inputs(25, scale=40.0)
    _check_against_arb(tier(large), *_arb_attention(large, everything, nothing))


# -- the self-check ------------------------------------------------------------------------


def test_numpy_is_as_accurate_as_assumed() -> None:
    found = selfcheck.numpy_exp_error()
    assert found.ok, found.failures
    assert 0.4 < found.exp_ulp <= 2
    assert 0.4 < found.log_ulp <= 2


def test_selfcheck_sees_a_poor_exp(monkeypatch: pytest.MonkeyPatch) -> None:
    exp = np.exp
    monkeypatch.setattr(np, "exp", lambda x: exp(x) * (1 + 6e-16))
    found = selfcheck.numpy_exp_error()
    assert not found.ok
    assert "np.exp is off by" in found.failures[0]
    # Wrong in a vector's remainder only, as a broken code path would be.
    monkeypatch.setattr(np, "exp", lambda x: exp(x) * (1 + 6e-16 * (x.size < 4)))
    assert not selfcheck.numpy_exp_error().ok


def test_selfcheck_sees_a_poor_log(monkeypatch: pytest.MonkeyPatch) -> None:
    log = np.log
    monkeypatch.setattr(np, "log", lambda x: log(x) * (1 - 6e-16))
    found = selfcheck.numpy_exp_error()
    assert not found.ok
    assert "np.log is off by" in found.failures[0]


def test_selfcheck_sees_flushed_subnormals() -> None:
    import torch

    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        faults = selfcheck.arithmetic_faults()
    finally:
        torch.set_flush_denormal(False)
    assert faults == ["subnormal float64 numbers are flushed to zero"]
    assert selfcheck.arithmetic_faults() == []
