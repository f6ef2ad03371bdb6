"""The bound holds for every kernel that keeps the contract, and for little else.

A simulator evaluates one element of attention and puts each stage's error at the edge of what
the kernel contract (docs/contract.md) allows, with the signs that move the result out most.
It shares no code with the bound or with a kernel.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from flashcheck import strategies
from flashcheck.bounds import Bound, bound
from flashcheck.examples import load
from flashcheck.families import SCORES, VALUES
from flashcheck.fills import Fill
from flashcheck.formats import DTYPES, FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.masks import Mask
from flashcheck.oracle import definition, double_double, float64
from flashcheck.problem import Problem
from flashcheck.strategies import Space

HALF = ("float16", "bfloat16")
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
NORMAL = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}
SMALL = Space(max_length=17, head_dims=(1, 2, 3, 8), work=1500)


@cache
def drawn(dtype: str, count: int, space: Space = SMALL) -> tuple[Problem, ...]:
    return strategies.drawn(replace(space, dtype=dtype), count, seed=5)


def bounds_of(x: Inputs, contract: Contract = Contract(), device: str = "cpu") -> Bound:
    return bound(x, float64.attention(x), contract, device)


# -- the simulator ------------------------------------------------------------------------

_MP: Any = mpmath.mp.clone()
_MP.prec = 160

SINK = -1
"""The sink of a row, among its keys."""


@dataclass(frozen=True)
class Form:
    """One of the evaluations that the contract allows.

    first       P is normalized before it is rounded and multiplied, not after
    summed      the normalizer adds P after rounding
    lag         nats by which the maximum used lies below the row's
    wild        signs are random rather than all against the result
    """

    first: bool = False
    summed: bool = False
    lag: float = 0.0
    wild: bool = False


FORMS = (
    Form(), Form(summed=True), Form(first=True), Form(lag=5.0),
    Form(wild=True), Form(summed=True, wild=True), Form(first=True, wild=True),
)  # fmt: skip


class Extreme:
    """A row evaluated with every error at the edge of the contract."""

    def __init__(
        self, x: Inputs, row: tuple[int, int, int], contract: Contract, coin: random.Random
    ) -> None:
        self.exact = x.dtype == "float64"
        self.number: Callable[[float], Any] = _MP.mpf if self.exact else float
        self.exp = _MP.exp if self.exact else math.exp
        self.log = _MP.log if self.exact else math.log
        self.tanh = _MP.tanh if self.exact else math.tanh
        self.x, self.row, self.contract, self.coin = x, row, contract, coin
        b, h, i = row
        self.c = h // (x.q.shape[1] // x.k.shape[1])
        self.keys = [int(j) for j in np.flatnonzero(x.visible[b, h, i])]
        self.len_k = x.k.shape[2] + (x.sinks is not None)
        half = x.dtype in HALF
        self.u = UNIT["float64"] if self.exact else UNIT["float32"]
        self.p_type = x.dtype if half and contract.p_dtype is None else None
        table = UNIT[x.dtype] / 4 if half else 8 * self.u
        self.e = table if contract.exp_error is None else contract.exp_error
        self.d = x.q.shape[3]
        blocks = math.ceil(self.len_k / (contract.kv_block or 1))
        self.roundings = 2 * self.len_k
        self.rescales = (8 + self.len_k) * self.u
        if contract.kv_block is not None:
            self.roundings = min(self.roundings, contract.kv_block + 2 * blocks)
            self.rescales = min(self.rescales, 8 * self.u + blocks * self.e)
        self.fold = 0 if contract.exp_form == "exp" else 1
        self.terms = {j: self._terms(j) for j in self.keys}
        if x.sinks is not None:
            self.keys.append(SINK)

    def _terms(self, j: int) -> tuple[Any, Any, Any]:
        """Exact score without bias, sum of the terms' magnitudes, bias."""
        b, h, i = self.row
        x = self.x
        scale = self.number(x.exact_scale)
        if x.scale is None and self.exact:
            scale = 1 / _MP.sqrt(self.d)
        products = [
            scale * self.number(float(q)) * self.number(float(k))
            for q, k in zip(x.q[b, h, i], x.k[b, self.c, j], strict=True)
        ]
        bias = 0.0 if x.bias is None else float(x.bias[b, h, i, j])
        return sum(products), sum(map(abs, products)), self.number(bias)

    def _sign(self, form: Form, against: Any) -> int:
        """The sign that moves the result out; random where the form says so."""
        if form.wild:
            return self.coin.choice((-1, 0, 1))
        return 1 if against >= 0 else -1

    def scores(self, form: Form, away: dict[int, Any]) -> dict[int, Any]:
        """Computed scores, off in the direction `away` of each key."""
        relative = (1 + self.u) ** (self.d + 4) - 1
        if self.contract.qk == "tf32":
            relative = (1 + relative) * (1 + 2.0**-10) ** 2 - 1
        if self.contract.scale_in_input_dtype:
            relative = (1 + relative) * (1 + UNIT[self.x.dtype]) - 1
        found = {}
        x = self.x
        cap, u = self.number(x.softcap), self.u
        for j in self.keys:
            t = self._sign(form, away[j])
            if j == SINK:
                assert x.sinks is not None
                z = self.number(float(x.sinks[self.row[1]]))
                found[j] = z + t * self.fold * u * abs(z)
                continue
            s, a, bias = self.terms[j]
            s = s + t * relative * a
            if x.softcap:  # 1 / cap, a product, tanh, a product with cap and one with log2(e)
                larger = 1 + t * 2 * u * (1 if s >= 0 else -1)
                s = cap * (self.tanh(s / cap * larger) + t * 15 * u)
                s = s + t * (2 + self.fold) * u * abs(s)
            if x.alibi is not None:
                alibi = self.number(float(x.alibi[0, self.row[1], self.row[2], j]))
                s = s + alibi + t * (1 + self.fold) * u * abs(alibi)
                s = s + t * u * abs(s)
            if self.x.bias is not None:
                s = s + bias + t * self.fold * self.u * abs(bias)
                s = s + t * self.u * abs(s)
            found[j] = s
        return found

    def weights(self, form: Form, s: dict[int, Any], m: Any, push: dict[int, Any]) -> Any:
        """exp(s - m), its argument, itself and its rescaling off by all they may be."""
        found = {}
        for j in self.keys:
            t = self._sign(form, push[j])
            top = max(s.values())
            scaled = (abs(s[j]) + abs(top)) if self.fold else 0
            argument = s[j] - m + t * self.u * (scaled + 5 * (top - s[j]))
            w = self.exp(argument) * (1 + t * self.e)
            if w < 2.0**-124:
                w = 0 * w if t < 0 or form.wild else w
            found[j] = w * (1 + t * self.rescales)
        return found

    def rounded(self, form: Form, p: dict[int, Any], push: dict[int, Any]) -> dict[int, Any]:
        """P in the format in which it enters the product."""
        if self.p_type is None:
            return p
        found = {}
        for j in self.keys:
            t = self._sign(form, push[j])
            # Round to nearest: at most u / (1 + u), relative to the unrounded value.
            error = UNIT[self.p_type] / (1 + UNIT[self.p_type]) * p[j]
            if p[j] < NORMAL[self.p_type]:
                error = min(SMALLEST[self.p_type] / 2, p[j])
            found[j] = p[j] + t * error
        return found

    def run(self, e: int, out: float, up: int, form: Form) -> tuple[Any, Any]:
        """out's element e and lse, both pushed up (up = 1) or down (up = -1)."""
        b = self.row[0]
        one = self.number(1.0)
        v = {
            j: self.number(0.0 if j == SINK else float(self.x.v[b, self.c, j, e]))
            for j in self.keys
        }
        centred = {j: up * (v[j] - out) for j in self.keys}
        plain = {j: up * v[j] for j in self.keys}
        common = dict.fromkeys(self.keys, -up * out * one)
        s = self.scores(form, centred)
        m = max(s.values()) - form.lag
        sums = (1 + self.u) ** self.roundings

        w = self.weights(form, s, m, plain)
        below = self.weights(form, s, m, common)
        t = self._sign(form, common[self.keys[0]])
        spread = sums if t > 0 else 1 / sums
        if form.first:
            l = sum(below.values()) * spread
            p = {j: w[j] / l * (1 + self._sign(form, plain[j]) * self.u) ** 2 for j in self.keys}
            p = self.rounded(form, p, plain)
            total = self._product(form, p, v, plain, sums)
        elif form.summed:
            # One exp, rounded once, in both sums.
            w = self.rounded(form, self.weights(form, s, m, centred), centred)
            total = self._product(form, w, v, plain, sums) / (sum(w.values()) * spread)
        else:
            p = self.rounded(form, w, plain)
            total = self._product(form, p, v, plain, sums) / (sum(below.values()) * spread)
        total = total * (1 + self._sign(form, up * total) * self.u) ** 2
        grain = UNIT[self.x.dtype] * abs(total)
        if abs(total) < NORMAL[self.x.dtype]:
            grain = SMALLEST[self.x.dtype] / 2
        result = total + up * grain * self._sign(form, one)

        s = self.scores(form, dict.fromkeys(self.keys, up * one))
        m = max(s.values()) - form.lag
        terms = self.weights(form, s, m, dict.fromkeys(self.keys, up * one))
        if self.contract.normalizer != "before_rounding":
            terms = self.rounded(form, terms, dict.fromkeys(self.keys, up * one))
        l = sum(terms.values()) * (sums if up > 0 else 1 / sums)
        log = self.log(l)
        lse = m + up * self.u * abs(m) + log + up * 2 * self.u * abs(log)
        return result, lse + up * self.u * abs(lse)

    def _product(
        self, form: Form, p: dict[int, Any], v: dict[int, Any], push: dict[int, Any], sums: Any
    ) -> Any:
        """sum p v: each product rounded, each term in up to 2 n sums and rescales."""
        total = self.number(0.0)
        grain = _MP.ldexp(1, -1075) if self.exact else 2.0**-150
        for j in self.keys:
            t = self._sign(form, push[j])
            term = p[j] * v[j]
            # `push` is the sign of what moves the result out: the term grows where t > 0.
            grown = term * (1 + self.u) * sums if t > 0 else term / ((1 + self.u) * sums)
            total = total + grown + (t if term >= 0 else -t) * grain
        return total


def _worst(
    x: Inputs, contract: Contract, coin: random.Random, rows: int = 2
) -> list[tuple[float, str]]:
    """Ratios error / bound of some elements of a problem, with what they are."""
    b = bounds_of(x, contract)
    seen = np.argwhere(np.isfinite(b.lse) & x.visible.any(-1))
    if not len(seen):
        return []
    picked = [seen[coin.randrange(len(seen))] for _ in range(rows)]
    chosen = [(int(b), int(h), int(i)) for b, h, i in picked]
    value = definition.attention(x, chosen)
    found = []
    for row in dict.fromkeys(chosen):
        extreme = Extreme(x, row, contract, coin)
        e = coin.randrange(x.v.shape[3])
        at = (*row, e)
        for form in FORMS:
            if not form.summed and contract.normalizer == "after_rounding":
                continue
            for up in (1, -1):
                out, lse = extreme.run(e, float(value.out[at]), up, form)
                error = abs(out - extreme.number(value.out[at]) - value.out_low[at])
                limit = float(b.out[at]) + float(value.out_radius[at])
                if math.isfinite(b.out[at]):
                    found.append((float(error / limit) if limit else 0.0, f"out{at} {form} {up}"))
                error = abs(lse - extreme.number(value.lse[row]) - value.lse_low[row])
                limit = float(b.lse[row]) + float(value.lse_radius[row])
                found.append((float(error / limit), f"lse{row} {form} {up}"))
    return found


CONTRACTS = {
    "default": Contract(),
    "after rounding": Contract(normalizer="after_rounding"),
    "either": Contract(normalizer="either"),
    "coarse exp": Contract(exp_error=2.0**-7),
    "tf32": Contract(qk="tf32"),
    "scale in the input dtype": Contract(scale_in_input_dtype=True),
    "exp of the difference": Contract(exp_form="exp"),
    "blocks": Contract(kv_block=4),
    "blocks and a good exp": Contract(kv_block=2, exp_form="exp", exp_error=2.0**-23),
}


@pytest.mark.parametrize("name", CONTRACTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_extremal_kernel_stays_within_the_bound(dtype: str, name: str) -> None:
    if dtype == "float64" and name == "tf32":
        pytest.skip("float64 has no TF32")
    coin = random.Random(name)
    count = {"float64": 50}.get(dtype, 100) if name == "default" else 30
    ratios: list[float] = []
    for p in drawn(dtype, count):
        for ratio, what in _worst(p.inputs(), CONTRACTS[name], coin):
            assert ratio <= 1, f"{what}: {ratio}\n{p}\nseed {p.seed}"
            ratios.append(ratio)
    assert len(ratios) > 5 * count
    # The simulator is no straw man: it comes near.
    assert max(ratios) > 0.4


def with_options(x: Inputs, coin: random.Random) -> Inputs:
    """The same problem with some of softcap, ALiBi, sinks and a window."""
    heads = x.q.shape[1]

    def float32(low: float, high: float) -> Array:
        return FORMATS["float32"].round([coin.uniform(low, high) for _ in range(heads)])

    changes: dict[str, Any] = {}
    if coin.random() < 0.5:
        changes["softcap"] = coin.choice((50.0, 2.0, 0.1, 1000.0))
    if coin.random() < 0.5:
        changes["alibi_slopes"] = float32(-0.1, coin.choice((0.1, 1.0, 10.0)))
    if coin.random() < 0.5:
        size = coin.choice((1.0, 10.0, 70.0))
        changes["sinks"] = float32(-size, size)
    if coin.random() < 0.3:
        changes["window"] = (coin.randrange(-1, 9), coin.randrange(-1, 9))
    return x.with_(**changes)


@pytest.mark.parametrize("name", ["default", "exp of the difference", "blocks and a good exp"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_extremal_kernel_with_options_stays_within_the_bound(dtype: str, name: str) -> None:
    coin = random.Random(name)
    ratios: list[float] = []
    for p in drawn(dtype, {"float64": 40}.get(dtype, 100)):
        x = with_options(p.inputs(), coin)
        for ratio, what in _worst(x, CONTRACTS[name], coin):
            assert ratio <= 1, f"{what}: {ratio}\n{p}\n{x}"
            ratios.append(ratio)
    assert len(ratios) > 200
    assert max(ratios) > 0.4


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_lse_of_a_lagging_maximum(dtype: str) -> None:
    """lse = r + log l with the reference r below the row's maximum: u |r| and u log l are of
    the size of the lag, however small the maximum and lse are."""
    p = Problem(
        dtype=dtype, len_k=2, q=Fill(level=1.0), k=Fill("step", level=0.0, base=-5.0, at=1),
        v=Fill(level=1.0),
    )  # fmt: skip
    x, row = p.inputs(), (0, 0, 0)
    contract = Contract(rescale_threshold=8.0)
    limit, value = bounds_of(x, contract), definition.attention(x, [row])
    extreme = Extreme(x, row, contract, random.Random(0))
    _, lse = extreme.run(0, float(value.out[0, 0, 0, 0]), 1, Form(lag=5.0))
    error = abs(lse - extreme.number(float(value.lse[row])) - float(value.lse_low[row]))
    assert error <= limit.lse[row] + value.lse_radius[row]


def test_half_precision_comes_near_the_bound_everywhere() -> None:
    coin = random.Random(1)
    tops = []
    for p in drawn("bfloat16", 60):
        found = _worst(p.inputs(), Contract(), coin)
        tops.append(max((ratio for ratio, what in found if what.startswith("out")), default=1.0))
    assert np.median(tops) > 0.3


# -- single kernels, spelled out -----------------------------------------------------------

U = UNIT["float32"]


def _keys(q: Any, k: Any, v: Any, dtype: str = "float32", **options: Any) -> Inputs:
    """One query q [D], keys k [n, D] and values v [n]; the scale is 1 unless it is given."""
    k, v = np.asarray(k, np.float64), np.asarray(v, np.float64)
    q = np.asarray(q, np.float64).reshape(1, 1, 1, -1)
    options = {"scale": 1.0, "mask_dtype": "float32", **options}
    return Inputs(dtype, q, k.reshape(1, 1, -1, q.shape[3]), v.reshape(1, 1, -1, 1), **options)


def _float32(x: Any) -> Array:
    return FORMATS["float32"].round(x)


def _ratios(x: Inputs, contract: Contract, out: float, lse: float | None = None) -> float:
    """The larger of error / bound of out and of lse, where they are given."""
    b, exact = bounds_of(x, contract), definition.attention(x)
    found = abs(out - exact.out.item() - exact.out_low.item()) / b.out.item()
    if lse is None:
        return float(found)
    return float(max(found, abs(lse - exact.lse.item() - exact.lse_low.item()) / b.lse.item()))


ALL_FLOAT64 = Contract(qk="float64", statistics="float64", accumulator="float64")


def test_statistics_in_float64_leave_exp_p_and_lse_in_float32() -> None:
    x = _keys([1.0], [0.0, -1.0], [1.0, -1.0])
    w = np.array([1 + 8 * U, math.exp(-1) * (1 - 8 * U)])
    out, exact = (w[0] - w[1]) / w.sum(), math.log(1 + math.exp(-1))
    assert 0.1 < _ratios(x, ALL_FLOAT64, float(_float32(out)), float(_float32(exact))) <= 1
    # Rounded P, with an exp that is as good as float64's.
    w = np.array([1 + U, math.exp(-1) * (1 - U)])
    good = replace(ALL_FLOAT64, exp_error=0.0)
    assert 0.1 < _ratios(x, good, float(_float32((w[0] - w[1]) / w.sum()))) <= 1


def test_q_is_scaled_in_float32_whatever_the_statistics_are() -> None:
    scale, q = _float32([0.37, 0.7])
    c = _float32(200 * scale * q)
    x = _keys([q], [100.0, -100.0], [1.0, -1.0], scale=float(scale), mask=np.array([[0.0, c]]))
    s = _float32(q * scale) * np.array([100.0, -100.0]) + [0.0, c]
    contract = replace(ALL_FLOAT64, exp_error=0.0, p_dtype="float64")
    assert 0.01 < _ratios(x, contract, float(np.tanh((s[0] - s[1]) / 2))) <= 1


def test_three_tf32_products_may_share_a_sum() -> None:
    """The three parts of every product are added one by one to a sum of 1; each is rounded
    down by nearly u."""
    d = 512
    large, small = 1 + 22 * 2.0**-10, 0.95 * 2.0**-11
    q, k = np.full(d, large + small), np.full(d, (large + small) * 2.0**-13)
    q[0] = k[0] = 1.0
    x = _keys(_float32(q), _float32([k, -k]), [1.0, -1.0])
    parts = (small * large, large * small, large * large)
    total = np.float32(1)
    for _ in range(d - 1):
        for part in parts:
            total = np.float32(total + np.float32(part * 2.0**-13))
    assert 0.5 < _ratios(x, Contract(qk="tf32x3"), math.tanh(total)) <= 1


@pytest.mark.parametrize("block", [64, 256])
def test_blocks_that_are_merged_by_their_lse(block: int) -> None:
    """Two splits of a block each, maxima that lag by 11 nats and a logarithm off by 3 ulp."""
    v = np.repeat([1.0, -1.0], block)
    v[0] = v[block] = 0.0
    # The first key of each half is 11 nats below the others, and remains the reference.
    x = _keys([1.0], np.where(v == 0, -11.0, 0.0), v)
    log_l = math.log(block) + 11
    ulp = 2.0 ** (math.floor(math.log2(log_l)) - 23)
    weight = np.exp(np.array([1, -1]) * (3 * ulp + 2 * 8 * U + block * U))
    out = float((weight[0] - weight[1]) / weight.sum()) * (1 - math.exp(-11) / block)
    assert 0.3 < _ratios(x, Contract(kv_block=block), out) <= 1


def test_lse_is_rounded_before_splits_are_merged_by_it() -> None:
    """exp takes differences only, but an lse of 4100 is off by 2^-12 of its own."""
    b = np.array([4100.0, 4100.5, 4100.3, 4100.6])
    x = _keys([1.0], [2.0**-13, -(2.0**-13)] * 2, [1.0, 1.0, -1.0, -1.0], mask=_float32(b)[None])
    lses = []
    for up, part in ((1, slice(0, 2)), (-1, slice(2, 4))):
        s = (x.k[0, 0, part, 0] + _float32(b)[part]) * (1 + up * U)
        lses.append(math.log(np.exp(s - s[0]).sum()) + s[0])
        lses[-1] *= 1 + up * U
    out = math.tanh((lses[0] - lses[1]) / 2)
    assert 0.5 < _ratios(x, Contract(exp_form="exp"), out) <= 1


@pytest.mark.parametrize("slope", [64.0, 2048.0])
def test_alibi_by_index_and_then_a_mask(slope: float) -> None:
    """Both sums are of numbers as large as slope times the row's own place, 63, each term of
    which has three roundings; and so has the argument of exp two."""
    n = 64
    mask = np.full((1, n), -np.inf)
    mask[0, -2:] = slope, 0.0
    x = _keys([0.0], np.zeros(n), np.tile([1.0, -1.0], n // 2), mask=mask,
              alibi_slopes=np.array([slope]))  # fmt: skip
    s = []
    for j, up in ((n - 2, U), (n - 1, -U)):
        added = slope * j * (1 + 3 * up) * (1 + up)
        s.append((added + mask[0, j] * (1 + 2 * up)) * (1 + up) + up * 2 * slope * (n - 1))
    assert 0.8 < _ratios(x, Contract(), math.tanh((s[0] - s[1]) / 2)) <= 1


def test_weights_of_the_float64_tier_are_off_as_well() -> None:
    """64 products of 5e13 cancel, and may be off by 24: a float64 kernel's sum is 22 too large,
    where the tier's is 8 too small."""
    a = np.tile([1.0, -1.0], 32) * 5e13
    for low in (-20.0, -100.0):
        mask = np.array([[0.0, low]])
        x = _keys(np.ones(64), [np.zeros(64), a], [0.0, 1.0], "float64", mask=mask)
        at = float64.attention(x)
        assert at.lse_radius.item() > 8
        s = at.s - np.array([0.0, 8.0])
        p = np.exp(s) / np.exp(s).sum()
        off = replace(at, s=s, p=p, out=p @ at.v, out_radius=at.out_radius * math.exp(-8))
        b = bound(x, off, Contract())
        assert b.lse.item() > math.log1p(math.exp(22 + low))
        assert b.out.item() > math.exp(22 + low) / (1 + math.exp(22 + low))


# -- where nothing is promised, and where all is ------------------------------------------


def _one(dtype: str, q: float, k: float, v: float, n: int = 1, **changes: Any) -> Problem:
    return Problem(
        dtype=dtype, len_k=n, q=Fill(level=q), k=Fill(level=k), v=Fill(level=v), **changes
    )


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (_one("float32", 1e19, 1e19, 1.0), "q k overflows"),
        (_one("float32", 1e19, 1e19, 1.0, scale=1e-30), "before the scale, too"),
        (_one("float32", 1.0, 1.0, 1e38), "sums of v overflow"),
        (_one("float32", 1.0, 1.0, 1e37, n=20), "sums of v overflow"),
        (_one("bfloat16", 1.0, 1.0, 3e38), "sums of v overflow"),
        (_one("float16", 6e4, 6e4, 1.0), "a row maximum whose rounding overflows P"),
        (_one("float32", 1e30, 1.0, 1.0, scale=1e9), "scaled first"),
        (_one("float16", 1.0, 1.0, 65504.0), "out may round to infinity"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_infinite_outside_the_contract(problem: Problem, why: str) -> None:
    b = bounds_of(problem.inputs())
    assert np.isinf(b.out).all(), why
    assert b.vacuous.all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hidden_key_that_overflows_counts(dtype: str) -> None:
    big = {"float16": 6e4, "float64": 1e160}.get(dtype, 1e30)
    p = Problem(
        dtype=dtype, len_k=2, dim=2, q=Fill(level=big), v=Fill(level=1.0),
        k=Fill("spike", level=big, at=-1), mask=Mask(hides="tail", amount=1),
    )  # fmt: skip
    b = bounds_of(p.inputs())
    # float16's largest products fit float32.
    assert np.isinf(b.out).all() == (dtype != "float16")


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_inside(dtype: str) -> None:
    for size in (0.0, 1.0, 100.0, 1e4):
        b = bounds_of(_one(dtype, 1.0, size, 1.0, n=100).inputs())
        assert np.isfinite(b.out).all()
        assert np.isfinite(b.lse).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_zero_for_a_row_that_sees_no_key(dtype: str, kind: Any) -> None:
    normal = Fill(noise="normal", spread=1.0)
    p = Problem(
        dtype=dtype, len_q=4, len_k=5, dim=3, dim_v=2, q=normal, k=normal, v=normal,
        mask=Mask(kind=kind, hides="row", amount=2),
    )  # fmt: skip
    b = bounds_of(p.inputs())
    dark = np.arange(4) == 2
    assert (b.out[:, :, dark] == 0).all()
    assert (b.lse[:, :, dark] == 0).all()
    assert not b.vacuous[:, :, dark].any()
    assert (b.out[:, :, ~dark] > 0).all()
    empty = bounds_of(replace(p, len_k=0, mask=None).inputs())
    assert (empty.out == 0).all()
    assert (empty.lse == 0).all()


# -- the order of contracts ---------------------------------------------------------------


def _pairs() -> list[tuple[str, Contract, Contract, tuple[str, ...]]]:
    """(name, wider, narrower, dtypes)."""
    plain, wide = Contract(), ("float32", *HALF)
    return [
        ("tf32", Contract(qk="tf32"), plain, wide),
        ("tf32 and three of them", Contract(qk="tf32"), Contract(qk="tf32x3"), wide),
        ("three tf32", Contract(qk="tf32x3"), plain, wide),
        ("float64 products", plain, Contract(qk="float64"), wide),
        ("float64 statistics", plain, Contract(statistics="float64"), wide),
        ("float64 sums", plain, Contract(accumulator="float64"), wide),
        ("exp", Contract(exp_error=2.0**-6), Contract(exp_error=2.0**-20), DTYPES),
        ("scale", Contract(scale_in_input_dtype=True), plain, wide),
        ("P", plain, Contract(p_dtype="float32"), HALF),
        ("coarse P", Contract(p_dtype="bfloat16"), plain, ("float32",)),
        ("flush", Contract(flushes_subnormals=True), plain, wide),
        ("exp of scaled scores", plain, Contract(exp_form="exp"), DTYPES),
        ("octaves", Contract(exp_form="exp2_fma"), Contract(exp_form="exp"), DTYPES),
        ("blocks", plain, Contract(kv_block=4), DTYPES),
        ("small blocks", Contract(kv_block=1), Contract(kv_block=3), DTYPES),
    ]


@pytest.mark.parametrize("pair", _pairs(), ids=lambda pair: pair[0])
def test_a_wider_contract_has_a_wider_bound(
    pair: tuple[str, Contract, Contract, tuple[str, ...]],
) -> None:
    _, wider, narrower, dtypes = pair
    strictly = 0
    for dtype in dtypes:
        for p in drawn(dtype, 30):
            x = p.inputs()
            a, b = bounds_of(x, wider), bounds_of(x, narrower)
            assert (a.out >= b.out).all(), str(p)
            assert (a.lse >= b.lse).all(), str(p)
            strictly += bool((a.out > b.out).any())
    assert strictly > 2


@pytest.mark.parametrize("dtype", HALF)
def test_a_normalizer_of_rounded_weights_widens_lse_and_never_out(dtype: str) -> None:
    for p in drawn(dtype, 30):
        x = p.inputs()
        before = bounds_of(x)
        for contract in (Contract(normalizer="after_rounding"), Contract(normalizer="either")):
            other = bounds_of(x, contract)
            usable = np.isfinite(before.lse) & (before.lse > 0)
            assert (other.lse[usable] > before.lse[usable]).all()
            assert (other.out <= before.out).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_may_do_worse(dtype: str) -> None:
    for p in drawn(dtype, 30):
        x = p.inputs()
        cpu, gpu = bounds_of(x), bounds_of(x, device="cuda:0")
        assert (gpu.out >= cpu.out).all()
        assert (gpu.lse >= cpu.lse).all()
        if dtype == "float64":
            np.testing.assert_array_equal(gpu.out, cpu.out)


# -- as it was -----------------------------------------------------------------------------

STORED = {
    "3336uomt": (0.00033434146714079, 0.0001574154841215474),
    "5ygp6f37": (1.3739364258687683e-05, 3.580394781233741e-05),
    "dlzflkqg": (0.00039291385812961836, 0.00016363114376960282),
    "ffpahmrh": (1.582800617543876e-05, 4.1668998557363656e-05),
    "gvxs63iq": (0.004205405197774926, 0.0010183118195003084),
    "pfemnb43": (0.002604672205448286, 0.0010128696627482391),
    "pghppsov": (0.0029181897151836834, 0.0010187342519190508),
    "pozacgwm": (0.00045199537529861143, 0.00025193840531138314),
    "suavra64": (2.3779873831491934e-05, 4.255707998097405e-05),
    "ybm3qmx4": (0.0034877892888438484, 0.0011074372878069542),
    "yoxsy6jm": (0.0005655175546174784, 0.0001628911090184333),
    "zcnlokbm": (1.9702390046435483e-05, 0.00013032502879027372),
}
"""Mean bounds of out and of lse on the captured examples: who changes one means to."""


@pytest.mark.parametrize("name", STORED)
def test_the_bound_is_what_it_was(name: str) -> None:
    x = load(Path(__file__).parents[1] / f"regressions/fc-{name}.json").inputs
    b = bounds_of(x)
    # Another machine's exp may differ in the last place.
    assert (b.out.mean(), b.lse.mean()) == pytest.approx(STORED[name], rel=1e-12)


# -- the oracle beside it -----------------------------------------------------------------

WIDER = Space(max_length=130, work=20_000)


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_the_fast_tier_is_a_hundred_times_finer(dtype: str) -> None:
    elements = coarse = 0
    for p in drawn(dtype, 120, WIDER):
        x = p.inputs()
        at = float64.attention(x)
        b = bound(x, at, Contract())
        elements += b.out.size + b.lse.size
        coarse += _coarse(at.out_radius, b.out) + _coarse(at.lse_radius, b.lse)
    assert coarse == 0, f"{coarse} of {elements}"


def _coarse(radius: NDArray[np.float64], limit: NDArray[np.float64]) -> int:
    return int(((radius > limit / 100) & np.isfinite(limit)).sum())


@pytest.mark.parametrize("dtype", ["float32", *HALF])
def test_the_tiers_agree_within_their_radii(dtype: str) -> None:
    families = set()
    for p in drawn(dtype, 120, WIDER):
        x = p.inputs()
        fast, fine = float64.attention(x), double_double.attention(x)
        families |= {p.scores, p.values}
        with np.errstate(invalid="ignore"):
            for a, b, low, r, t in (
                (fast.out, fine.out, fine.out_low, fast.out_radius, fine.out_radius),
                (fast.lse, fine.lse, fine.lse_low, fast.lse_radius, fine.lse_radius),
            ):
                known = np.isfinite(r) & np.isfinite(t) & np.isfinite(a)
                assert (np.abs((a - b) - low)[known] <= (r + t)[known]).all(), str(p)
                assert (np.isneginf(a) == np.isneginf(b)).all()
    assert families == {*SCORES, *VALUES}
