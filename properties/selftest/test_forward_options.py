"""window, softcap, alibi_slopes and sinks: exact value, radius and bound.

Kernels in NumPy that compute these options in the ways that real ones do (benchmarks/styles.py)
have to stay within the bound, the same kernels with a mistake have to leave it. No kernel of
flashcheck takes the options yet, so the problems are made here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from styles import MISTAKES, STYLES, Style, attention, mistaken

from flashcheck import oracle
from flashcheck.bounds import Bound, bound
from flashcheck.bounds.scores import TANH_ERROR
from flashcheck.call import Call
from flashcheck.formats import DTYPES, FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle import Value, definition, double_double, float64
from flashcheck.worker import InProcess

SOFTCAPS = (50.0, 30.0, 5.0, 0.3, 1e4)


def _inputs(seed: int, dtype: str) -> Inputs:
    """A problem with some of the options, sizes that differ, and scores from 0.1 to 1000."""
    rng = np.random.Generator(np.random.PCG64(seed))

    def some(of: float) -> bool:
        return bool(rng.random() < of)

    def number(*shape: int, size: float = 1.0) -> Array:
        return FORMATS[dtype].round(rng.normal(size=shape) * size)

    def float32(x: Array) -> Array:
        return x.astype(np.float32).astype(np.float64)

    kv_heads, group, d = 1 + int(some(0.3)), 1 + int(some(0.3)), int(rng.choice([1, 3, 8, 16]))
    heads = kv_heads * group
    len_q, len_k = int(rng.choice([1, 2, 5, 9])), int(rng.choice([1, 2, 7, 9, 17, 40]))
    if some(0.5):
        len_q = len_k
    options: dict[str, Any] = {}
    if some(0.5):
        options["softcap"] = float(rng.choice(SOFTCAPS))
    if some(0.5):
        slopes = 2.0 ** -rng.uniform(0, 8, heads) * rng.choice([1.0, 1.0, -0.1, 4.0])
        options["alibi_slopes"] = float32(slopes)
    if some(0.5):
        options["sinks"] = float32(rng.normal(size=heads) * rng.choice([1.0, 8.0, 60.0]))
    if some(0.5):
        options["window"] = (int(rng.integers(-1, 9)), int(rng.choice([-1, 0, 1, 4])))
    if some(0.3):
        hidden = rng.random((len_q, len_k)) < 0.3
        options["mask"] = np.where(hidden, -np.inf, float32(rng.normal(size=hidden.shape) * 3))
        options["mask_dtype"] = "float32"
    elif some(0.3):
        options["is_causal"] = True
    return Inputs(
        dtype,
        q=number(1, heads, len_q, d, size=float(rng.choice([0.3, 2.0, 20.0]))),
        k=number(1, kv_heads, len_k, d),
        v=number(1, kv_heads, len_k, 3) + (2.0 if some(0.3) else 0.0),
        scale=float(rng.choice([0.5, 1.0, -0.25])) if some(0.3) else None,
        enable_gqa=group > 1,
        **options,
    )


# -- within the bound, or beyond -----------------------------------------------------------


@cache
def _exact(dtype: str, seed: int) -> tuple[Inputs, float64.Attention, Bound, Value]:
    x = _inputs(seed, dtype)
    at = float64.attention(x)
    b = bound(x, at, Contract())
    return x, at, b, oracle.evaluate(x, at, b.out, b.lse)


def _ratios(dtype: str, count: int, style: Style) -> Iterator[tuple[Inputs, float]]:
    """The largest (error - radius) / bound of out and lse of each problem."""
    for seed in range(count):
        x, _, b, value = _exact(dtype, seed)
        worst = 0.0
        for got, exact, low, radius, limit in zip(
            attention(x, style), (value.out, value.lse), (value.out_low, value.lse_low),
            (value.out_radius, value.lse_radius), (b.out, b.lse), strict=True,
        ):  # fmt: skip
            with np.errstate(invalid="ignore"):
                error = np.where(got == exact, 0.0, np.abs((got - exact) - low) - radius)
            judged = np.isfinite(limit)
            error = np.where(np.isnan(error), np.inf, error)[judged]
            limit = np.where(limit == 0, 1e-300, limit)[judged]
            worst = max(worst, float((error / limit).max(initial=0.0)))
        yield x, worst


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_kernels_stay_within_the_bound(dtype: str, name: str) -> None:
    ratios = []
    for seed, (x, ratio) in enumerate(_ratios(dtype, 300, STYLES[name])):
        assert ratio <= 1, f"seed {seed}: {ratio}\n{x}"
        ratios.append(ratio)
    # The bound is no wall far away.
    assert max(ratios) > 0.03


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mistakes_leave_the_bound(dtype: str, mistake: str) -> None:
    possible, ratios = MISTAKES[mistake], _ratios(dtype, 300, mistaken(mistake))
    found = [(possible(x), ratio > 1) for x, ratio in ratios]
    concerned, caught = (sum(column) for column in zip(*found, strict=True))
    assert caught > concerned / 4, f"{caught} of {concerned}"
    assert not any(failed and not possible for possible, failed in found)


# -- the oracle ----------------------------------------------------------------------------


def _holds(a: Value, b: Value) -> None:
    """The two enclose a common value, and are finite."""
    for name in ("out", "lse"):
        x, y = getattr(a, name), getattr(b, name)
        low = getattr(a, name + "_low") - getattr(b, name + "_low")
        radius = getattr(a, name + "_radius") + getattr(b, name + "_radius")
        assert np.isfinite(radius).all()
        with np.errstate(invalid="ignore"):
            error = np.abs(np.where(x == y, 0.0, x - y) + low)
        assert (error <= radius).all(), (name, error, radius)


def _float64_value(x: Inputs) -> Value:
    at = float64.attention(x)
    none = np.zeros_like(at.out), np.zeros_like(at.lse)
    return Value(at.out, none[0], at.lse, none[1], at.out_radius, at.lse_radius, "float64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tiers_agree_within_their_radii(dtype: str) -> None:
    for seed in range(1000, 1060):
        x = _inputs(seed, dtype)
        x = x.with_(bottom_right=seed % 2 == 0)
        slow, fine = definition.attention(x), double_double.attention(x)
        _holds(slow, fine)
        assert fine.out_radius.max() < 1e-22
        if dtype != "float64":
            _holds(fine, _float64_value(x))


@pytest.mark.parametrize("cap", [1e-3, 50.0, 1e12])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e4, 1e12])
def test_a_softcap_of_any_size(cap: float, size: float) -> None:
    """Scores from far below the cap to where tanh is 1."""
    x = _inputs(2, "float64").with_(softcap=cap, mask=None)
    x = x.with_(q=x.q * size)
    _holds(definition.attention(x), double_double.attention(x))


def test_the_fast_tier_is_a_hundred_times_finer() -> None:
    for seed in range(100):
        _, at, b, _ = _exact("float32", seed)
        for radius, limit in ((at.out_radius, b.out), (at.lse_radius, b.lse)):
            assert (radius <= limit / 100).all()


def test_a_window_and_alibi_begin_at_the_last_key() -> None:
    """Two queries are the last two of four keys, whatever is_causal is aligned by."""
    x = Inputs("float32", np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 4, 1)), np.ones((1, 1, 4, 1)),
               window=(1, 0), alibi_slopes=np.array([0.5]))  # fmt: skip
    assert x.visible[0, 0].tolist() == [[False, True, True, False], [False, False, True, True]]
    assert x.alibi is not None
    assert x.alibi[0, 0].tolist() == [[-1.0, -0.5, 0.0, -0.5], [-1.5, -1.0, -0.5, 0.0]]
    assert [definition.sees(x, (0, 0, 0), j) for j in range(4)] == x.visible[0, 0, 0].tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("len_k", [0, 3])
def test_a_row_with_a_sink_alone(dtype: str, len_k: int) -> None:
    one = np.ones((1, 2, 1, 4))
    k = np.ones((1, 2, len_k, 4))
    x = Inputs(dtype, one, k, k, mask=np.zeros((1, len_k), bool), sinks=np.array([3.0, -200.0]))
    at = float64.attention(x)
    for value in (_float64_value(x), double_double.attention(x), definition.attention(x)):
        assert (value.out == 0).all()
        assert (value.out_radius == 0).all()
        assert value.lse.ravel().tolist() == [3.0, -200.0]
        assert (value.lse_radius < 1e-28).all()
    b = bound(x, at, Contract())
    assert (b.out == 0).all()
    assert (b.lse > 0).all()
    assert (b.lse < 2.0**-8).all()
    assert not b.vacuous.any()


# -- the bound -----------------------------------------------------------------------------


def _one(**options: Any) -> tuple[Inputs, float, float]:
    """Two keys of scores 2 and -1, values 1 and -1, in float32: bounds of out and lse."""
    k, v = np.array([2.0, -1.0]).reshape(1, 1, 2, 1), np.array([1.0, -1.0]).reshape(1, 1, 2, 1)
    x = Inputs("float32", np.ones((1, 1, 1, 1)), k, v, **options)
    b = bound(x, float64.attention(x), Contract())
    return x, float(b.out.max()), float(b.lse.max())


def test_tanh_error_covers_every_form_of_tanh() -> None:
    """exp off by 8 u and by its argument's roundings, each operation by u, a quotient by 4 u,
    in the direction that hurts; in units of u, so far above float64's roundings."""
    u = 2.0**-24
    y = np.linspace(-12, 12, 4801)
    worst = 0.0
    for a, b, c, d in np.ndindex(3, 3, 3, 3):
        up = np.array([a, b, c, d]) - 1.0
        e = np.exp(2 * y) * (1 + up[0] * (8 + 3 * np.abs(2 * y)) * u)
        by_sum = 1 - 2 / ((e + 1) * (1 + up[1] * u)) * (1 + up[2] * 4 * u)
        p = np.exp(y) * (1 + up[0] * (8 + 3 * np.abs(y)) * u)
        n = np.exp(-y) * (1 + up[1] * (8 + 3 * np.abs(y)) * u)
        by_quotient = (p - n) / (p + n) * (1 + up[2] * 6 * u)
        for form in (by_sum, by_quotient):
            worst = max(worst, float(np.abs(form * (1 + up[3] * u) - np.tanh(y)).max() / u))
    assert 10 < worst < TANH_ERROR


def test_a_softcap_that_saturates_narrows_the_bound() -> None:
    x = _inputs(3, "float32").with_(
        softcap=0.0, alibi_slopes=None, sinks=None, mask=None, window=(-1, -1)
    )
    x = x.with_(q=np.ones_like(x.q) * 1e4, k=np.ones_like(x.k) * 100.0)
    plain = bound(x, float64.attention(x), Contract())
    capped = x.with_(softcap=1.0)
    b = bound(capped, float64.attention(capped), Contract())
    assert (b.lse < plain.lse / 100).all()


def test_each_option_adds_to_the_bound() -> None:
    _, out, lse = _one()
    for options in (
        {"softcap": 50.0}, {"alibi_slopes": np.array([-0.5])}, {"sinks": np.array([9.0])},
    ):  # fmt: skip
        _, wider_out, wider_lse = _one(**options)
        assert wider_lse > lse, options
        assert wider_out > out or "sinks" in options, options


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 1e38}, {"softcap": 1e-39}, {"alibi_slopes": np.array([1e38])},
        {"sinks": np.array([1e38])}, {"sinks": np.array([84.0])},
    ],
    ids=str,
)  # fmt: skip
def test_infinite_outside_the_contract(options: dict[str, Any]) -> None:
    _, out, lse = _one(**options)
    assert math.isinf(out)
    assert math.isinf(lse)


def test_a_sink_far_above_the_scores_excuses_no_infinity() -> None:
    """exp(sink - m), m of the keys alone, is infinite without any lag too."""
    for sink in (100.0, 1e4):
        _, out, lse = _one(sinks=np.array([sink]))
        assert math.isfinite(out)
        assert lse < 1e-5 * sink


def test_options_that_change_nothing_leave_every_bit() -> None:
    for seed in range(60):
        x = _inputs(seed, "float32")
        far = max(x.q.shape[2], x.k.shape[2])
        x = x.with_(softcap=0.0, alibi_slopes=None, sinks=None)
        a, b = (
            bound(y, float64.attention(y), Contract())
            for y in (x.with_(window=(-1, -1)), x.with_(window=(far, far)))
        )
        np.testing.assert_array_equal(a.out, b.out)
        np.testing.assert_array_equal(a.lse, b.lse)


# -- what is refused -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"window": (-2, 0)}, "window is (-2, 0); it must be"),
        ({"softcap": -1.0}, "softcap is -1.0; it must be"),
        ({"softcap": math.nan}, "softcap is nan; it must be"),
        ({"sinks": np.zeros(3)}, "sinks has shape [3]; it must be [Hq], here [1]"),
        ({"alibi_slopes": np.array([np.inf])}, "alibi_slopes holds NaN or infinity"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        _one(**options)


def test_a_block_has_a_key() -> None:
    with pytest.raises(ValueError, match="kv_block is 0; it must be at least 1 key, or None"):
        Contract(kv_block=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("window", (3, -1)), ("softcap", 5.0), ("alibi_slopes", np.ones(1)), ("sinks", np.ones(1))],
    ids=str,
)
def test_a_kernel_that_does_not_name_them_is_not_called(name: str, value: Any) -> None:
    """Without the option the call would be another."""
    x, _, _ = _one(**{name: value})
    option = "window_size" if name == "window" else name
    with InProcess(lambda query, key, value: query) as runner:
        target = runner.start()
        reply = runner.call(Call(x))
    assert target.not_taken(x) == f"does not name {option}"
    assert reply.status == "unsupported"
    assert f"does not name the option {option!r}" in reply.message
