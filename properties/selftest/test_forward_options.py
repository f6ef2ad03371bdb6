"""window, softcap, alibi_slopes and sinks: exact value, radius and bound.

Kernels in NumPy that compute these options in the ways that real ones do have to stay within
the bound, the same kernels with a mistake have to leave it. No kernel of flashcheck takes the
options yet, so the problems are made here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flashcheck import oracle
from flashcheck.bounds import Bound, bound
from flashcheck.bounds.scores import TANH_ERROR
from flashcheck.call import Call, Reply
from flashcheck.case import Case
from flashcheck.formats import DTYPES, FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract, Kernel, Target, absent
from flashcheck.oracle import Value, definition, double_double, float64
from flashcheck.problem import Problem

Block = NDArray[Any]

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


# -- kernels -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """One of the ways in which a correct kernel computes the options.

    tanh    libm's, or by exp: 1 - 2 / (e^2y + 1), or (e^y - e^-y) / (e^y + e^-y)
    octaves scores are scaled by log2(e), which goes into the cap, the slopes and the sink
    alibi   a multiple of the distance, or of the key's index where a row sees one side only
    sink    the initial maximum; added at the end to sums about the keys' own maximum or
            about one with the sink; or the whole as two parts that are merged by their lse
    skip    blocks that no query sees are left out, rather than hidden
    """

    tanh: str = "libm"
    octaves: bool = False
    alibi: str = "distance"
    mask_first: bool = False
    sink: str = "initial"
    skip: bool = False
    block: int = 8
    divide: bool = True
    mistake: str = ""


STYLES = {
    "plain": Style(),
    "octaves": Style(octaves=True, sink="own maximum", divide=False),
    "tanh of exp": Style(tanh="exp", sink="end", skip=True, block=4),
    "tanh of exp in octaves": Style(tanh="exp", octaves=True, sink="end", alibi="index"),
    "tanh by a quotient": Style(tanh="quotient", alibi="index", sink="merge"),
    "mask before ALiBi": Style(mask_first=True, sink="own maximum", skip=True, block=16),
    "blocks of one": Style(octaves=True, tanh="exp", mask_first=True, skip=True, block=1),
}


def _tanh(y: Block, how: str) -> Block:
    one = y.dtype.type(1)
    if how == "exp":
        return np.asarray(one - 2 / (np.exp(2 * y) + one))
    if how == "quotient":
        y = np.clip(y, -40, 40)  # where tanh is 1; e^y would overflow
        return np.asarray((np.exp(y) - np.exp(-y)) / (np.exp(y) + np.exp(-y)))
    return np.asarray(np.tanh(y))


def _scores(x: Inputs, k: Block, style: Style, one: Any) -> tuple[Block, Block]:
    """Scores [B, Hq, Lq, Lk], in octaves where the style says so, and what they are above."""
    q = x.q.astype(one)
    len_q, len_k = q.shape[2], k.shape[2]
    unit = one(math.log2(math.e)) if style.octaves else one(1)
    scale = one(x.exact_scale)
    shift = np.zeros((1, 1, len_q, 1), one)
    s = q @ k.swapaxes(2, 3)
    if x.softcap:
        cap = one(x.softcap)
        if style.mistake == "softcap before scale":
            s = cap * np.tanh(s / cap) * scale
        elif style.divide:
            s = (unit * cap) * _tanh((s * scale) / cap, style.tanh)
        else:
            s = (unit * cap) * _tanh(s * (scale / cap), style.tanh)
    else:
        s = s * (scale * unit)
    mask = None if x.bias is None else x.bias.astype(one) * unit
    if x.alibi_slopes is not None:
        slopes = (x.alibi_slopes.astype(one) * unit)[:, None, None]
        place = np.arange(len_q)[:, None] + (len_k - len_q)
        if style.mistake == "ALiBi from the top left":
            place = np.arange(len_q)[:, None]
        distance = np.abs(place - np.arange(len_k))
        one_side = x.is_causal and len_q == len_k
        if style.alibi == "index" and one_side:
            added = slopes * np.arange(len_k).astype(one)
            shift = (slopes * place.astype(one))[None]
        else:
            added = -slopes * distance.astype(one)
        added = np.asarray(-added if style.mistake == "ALiBi's sign" else added)[None]
        s = s + (added + mask) if style.mask_first and mask is not None else s + added
    if mask is not None and not (style.mask_first and x.alibi_slopes is not None):
        s = s + mask
    return np.asarray(s, one), shift


def _visible(x: Inputs, mistake: str) -> NDArray[np.bool_]:
    left, right = x.window
    if mistake == "window one short" and left > 0:
        return x.with_(window=(left - 1, right)).visible
    if mistake == "window one long" and right >= 0:
        return x.with_(window=(left, right + 1)).visible
    if mistake == "window from the top left":
        i, j = np.arange(x.q.shape[2])[:, None], np.arange(x.k.shape[2])
        seen = x.with_(window=(-1, -1)).visible
        return seen & ((left < 0) | (j >= i - left)) & ((right < 0) | (j <= i + right))
    return x.visible


@np.errstate(all="ignore")
def attention(x: Inputs, style: Style) -> tuple[Array, Array]:
    """Online softmax over blocks of keys: out [B, Hq, Lq, Dv] and lse [B, Hq, Lq]."""
    one: Any = np.float64 if x.dtype == "float64" else np.float32
    k = np.repeat(x.k, x.heads_per_kv, 1).astype(one)
    v = np.repeat(x.v, x.heads_per_kv, 1).astype(one)
    s, shift = _scores(x, k, style, one)
    seen = _visible(x, style.mistake)
    exp: Callable[[Any], Block] = np.exp2 if style.octaves else np.exp
    unit = one(math.log2(math.e)) if style.octaves else one(1)

    m = np.full((*s.shape[:3], 1), -np.inf, one)
    l = np.zeros_like(m)
    z = None if x.sinks is None else np.broadcast_to(x.sinks[:, None, None], m.shape).astype(one)
    if z is not None:
        z = z * unit + (shift if style.alibi == "index" else 0)
        z = np.asarray(z, one)
        if style.sink == "initial":
            m, l = z.copy(), np.ones_like(l)
    acc = np.zeros((*m.shape[:3], v.shape[3]), one)
    for start in range(0, k.shape[2], style.block):
        part = slice(start, start + style.block)
        if style.skip and not seen[..., part].any():
            continue
        block = np.where(seen[..., part], s[..., part], one(-np.inf))
        m_new = np.maximum(m, block.max(-1, keepdims=True))
        at = np.where(np.isneginf(m_new), one(0), m_new)
        p, alpha = exp(block - at), exp(m - at)
        l = l * alpha + p.sum(-1, keepdims=True)
        rounded = FORMATS[x.dtype].round(p).astype(one) if one is np.float32 else p
        acc = acc * alpha + (rounded if x.dtype != "float32" else p) @ v[:, :, part]
        m = m_new

    without = l
    if z is not None and style.mistake == "sink without the maximum":
        l = l + exp(z)
    elif z is not None and style.sink == "own maximum":
        at = np.where(np.isneginf(m), z, m)
        l, m = l + exp(z - at), at
    elif z is not None and style.sink == "end":
        top = np.maximum(m, z)
        l, acc, m = l * exp(m - top) + exp(z - top), acc * exp(m - top), top
    elif z is not None and style.sink == "merge":
        own = np.where(l == 0, -np.inf, m + np.log(np.where(l == 0, 1, l))).astype(one)
        top = np.maximum(own, z)
        acc = acc / np.where(l == 0, one(1), l) * exp(own - top)
        l, m = exp(own - top) + exp(z - top), top
    if z is not None and style.mistake == "sink twice":
        l = l + exp(z - m)
    out = acc / np.where(l == 0, one(1), l)
    inner = without if style.mistake == "sink left out of lse" else l
    logs = np.log2(inner) if style.octaves else np.log(inner)
    lse = (m - shift if style.alibi == "index" else m) + logs
    lse = (lse * one(math.log(2)) if style.octaves else lse)[..., 0]
    return FORMATS[x.dtype].round(out.astype(np.float64)), lse.astype(np.float64)


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


MISTAKES: dict[str, Callable[[Inputs], bool]] = {
    "softcap before scale": lambda x: x.softcap > 0,
    "ALiBi's sign": lambda x: x.alibi_slopes is not None,
    "ALiBi from the top left": lambda x: x.alibi_slopes is not None,
    "window one short": lambda x: x.window[0] > 0,
    "window one long": lambda x: x.window[1] >= 0,
    "window from the top left": lambda x: x.window != (-1, -1),
    "sink twice": lambda x: x.sinks is not None,
    "sink without the maximum": lambda x: x.sinks is not None,
    "sink left out of lse": lambda x: x.sinks is not None,
}
"""What a kernel may do wrong, and the problems on which that is possible at all."""


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_mistakes_leave_the_bound(dtype: str, mistake: str) -> None:
    style = replace(STYLES["plain"], sink="own maximum", mistake=mistake)
    found = [(MISTAKES[mistake](x), ratio > 1) for x, ratio in _ratios(dtype, 300, style)]
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
        {"softcap": 50.0}, {"alibi_slopes": np.array([0.5])}, {"sinks": np.array([9.0])},
    ):  # fmt: skip
        _, wider_out, wider_lse = _one(**options)
        assert wider_lse > lse, options
        assert wider_out > out or "sinks" in options, options


@pytest.mark.parametrize(
    "options",
    [
        {"softcap": 1e38}, {"softcap": 1e-39}, {"alibi_slopes": np.array([1e38])},
        {"sinks": np.array([1e38])}, {"sinks": np.array([100.0])},
    ],
    ids=str,
)  # fmt: skip
def test_infinite_outside_the_contract(options: dict[str, Any]) -> None:
    _, out, lse = _one(**options)
    assert math.isinf(out)
    assert math.isinf(lse)


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


class NoRunner:
    def submit(self, call: Call) -> None:
        raise AssertionError("nothing is to be run")

    def result(self) -> Reply:
        raise AssertionError("nothing was run")


@pytest.mark.parametrize(
    ("name", "value"),
    [("window", (3, -1)), ("softcap", 5.0), ("alibi_slopes", np.ones(1)), ("sinks", np.ones(1))],
    ids=str,
)
def test_no_kernel_is_called_without_them(name: str, value: Any) -> None:
    x, _, _ = _one(**{name: value})
    target = Target("k", "k", Kernel(absent))
    with pytest.raises(NotImplementedError, match=f"cannot pass {name}"):
        Call(x)
    with pytest.raises(NotImplementedError, match=f"cannot pass {name}"):
        Case(NoRunner(), target, Problem(), inputs=x)
