"""float8: exact value with its factors, and the bound of kernels that round P to float8.

Kernels in NumPy that keep the contract in the ways that real ones do have to stay within the
bound, the same kernels with a mistake have to leave it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import flashcheck
from flashcheck import oracle
from flashcheck.bounds import Bound, arithmetic, bound
from flashcheck.bounds.float8 import cut_scores
from flashcheck.call import Call
from flashcheck.fills import Fill
from flashcheck.formats import DTYPES, FLOAT8, FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract, Kernel
from flashcheck.oracle import definition, double_double, float64
from flashcheck.oracle.backward.float64 import backward
from flashcheck.oracle.rows import parts
from flashcheck.problem import Problem
from flashcheck.verdict import CheckFailed
from flashcheck.worker import InProcess

Block = NDArray[Any]

E4, E5 = FLOAT8
NUMPY = {
    E4: ml_dtypes.float8_e4m3fn,
    E5: ml_dtypes.float8_e5m2,
    "bfloat16": ml_dtypes.bfloat16,
    "float16": np.float16,
    "float32": np.float32,
}
OFFSET = {E4: 8.0, E5: 15.0}
ONE = np.float32(1)


# -- problems ------------------------------------------------------------------------------

FAMILIES = ("random", "late", "underflow", "huge", "tiny", "subnormal", "outliers", "one sign")


def _inputs(seed: int, dtype: str, family: str = "", **changes: Any) -> Inputs:
    """A problem of a family; sizes, kinds of factors and options differ."""
    rng = np.random.Generator(np.random.PCG64(seed))
    family = family or FAMILIES[seed % len(FAMILIES)]

    def some(of: float) -> bool:
        return bool(rng.random() < of)

    kv_heads, group = 1 + int(some(0.5)), 1 + int(some(0.4))
    batch, heads, d = 1 + int(some(0.3)), kv_heads * group, int(rng.choice([8, 20, 32, 64, 128]))
    len_q, len_k = int(rng.choice([1, 3, 8])), int(rng.choice([1, 9, 32, 70, 128, 200]))
    q = rng.normal(size=(batch, heads, len_q, d)) * rng.choice([0.3, 1.0, 3.0])
    k = rng.normal(size=(batch, kv_heads, len_k, d))
    v = rng.normal(size=(batch, kv_heads, len_k, 4))
    if family == "late":  # one key after the others has nearly all the weight
        k[:, :, -1] = 3 * np.sign(q[:, ::group, 0])
    if family == "underflow":  # all but one key lie where P, not enlarged, is rounded to 0
        q, k = np.ones_like(q), np.zeros_like(k)
        k[:, :, len_k // 3] = 7.3 / np.sqrt(d)
        v[:, :, len_k // 3] = 0
    if family == "subnormal":
        q, v = q * 2.0**-8, v * 2.0 ** (-8 if dtype == E4 else -15)
    if family == "outliers":  # FlashAttention-3's recipe, with more of them
        q, k, v = (
            x + 10 * rng.normal(size=x.shape) * (rng.random(x.shape) < 0.01) for x in (q, k, v)
        )
    if family == "one sign":
        v = np.abs(v) + 1

    blocks = (int(rng.choice([1, 2, 64])), 16)

    def factor(length: int, block: int, size: float) -> Array | None:
        kind = rng.choice(["none", "tensor", "one", "head", "block"])
        if kind == "none" and family not in ("huge", "tiny"):
            return None
        shape: tuple[int, ...] = {"head": (batch, kv_heads), "one": (1,)}.get(str(kind), ())
        if kind == "block":
            shape = (batch, kv_heads, -(-length // block))
        drawn = size * np.exp2(rng.uniform(-1, 1, shape))
        return np.asarray(drawn, np.float32).astype(np.float64)

    size = {"huge": 2.0**40, "tiny": 2.0**-60}.get(family, 1.0)
    scale = None
    if family in ("huge", "tiny"):
        scale = float(np.float32(size**-2 / np.sqrt(d)))
    options: dict[str, Any] = {
        "q_descale": factor(len_q, blocks[0], size),
        "k_descale": factor(len_k, blocks[1], size),
        "v_descale": factor(len_k, blocks[1], size),
        "descale_block": blocks,
        "scale": scale,
        "is_causal": some(0.2),
        "enable_gqa": group > 1,
    }
    if some(0.2):
        options["softcap"] = 5.0
    if some(0.2):
        options["sinks"] = np.float32(rng.normal(size=heads)).astype(np.float64)

    def to_float8(x: Array) -> Array:
        return x.astype(NUMPY[dtype]).astype(np.float64)

    options.update(changes)
    return Inputs(dtype, to_float8(q), to_float8(k), to_float8(v), **options)


# -- kernels -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Style:
    """One of the ways in which a correct kernel computes attention on float8.

    offset   octaves by which P is enlarged before it is rounded
    wide     the format of P where it is not the inputs'
    lag      octaves by which the running maximum may lag
    factors  of q and k: folded into the scale, applied to the scores, or to q and k themselves
    value    v's factor: applied to a block's sums, to the result, or to v itself
    mma      the products' sums: float32, a tensor core of Hopper's (32) or Ada's (16)
    promoted a block's sums join a float32 accumulator rather than the tensor core's
    exp      is as large as allowed for values above 0 and as small for others
    """

    offset: float = 0.0
    wide: str | None = None
    lag: float = 0.0
    factors: str = "scale"
    value: str = "block"
    mma: int | None = None
    promoted: bool = True
    exp: bool = False
    normalize_first: bool = False
    sum_rounded: bool = False
    splits: int = 1
    block: int = 32
    out: str = "bfloat16"
    contract: Contract = Contract()
    mistake: str = ""


E8M13 = Contract(qk="e8m13", accumulator="e8m13")
STYLES: dict[str, Callable[[str], Style]] = {
    "no offset": lambda d: Style(),
    "offset": lambda d: Style(offset=OFFSET[d], factors="scores"),
    "declared offset": lambda d: Style(
        offset=OFFSET[d], out="float16", contract=Contract(p_offset=OFFSET[d])
    ),
    "offset and lag": lambda d: Style(
        offset=4.0, lag=4.0, contract=Contract(p_offset=4.0, rescale_threshold=4.0), splits=2
    ),
    "lag to the end": lambda d: Style(lag=8.8, value="v", factors="q and k", block=16),
    "wide P": lambda d: Style(wide="bfloat16", out="float16", factors="q and k"),
    "P of float32": lambda d: Style(wide="float32", contract=Contract(p_dtype="float32")),
    "normalized first": lambda d: Style(normalize_first=True, block=1 << 10, value="v"),
    "rounded sum": lambda d: Style(
        sum_rounded=True, contract=Contract(normalizer="after_rounding"), offset=2.5
    ),
    "coarse exp": lambda d: Style(exp=True, offset=OFFSET[d] - 1),
    "Hopper": lambda d: Style(mma=32, offset=OFFSET[d], contract=E8M13),
    "Hopper, one accumulator": lambda d: Style(
        mma=32, promoted=False, value="result", contract=replace(E8M13, p_offset=0.0)
    ),
    "Ada": lambda d: Style(
        mma=16, promoted=False, value="result", factors="scores", contract=E8M13
    ),
}


def _exponents(x: Array, least: int) -> NDArray[np.int64]:
    """floor(log2 |x|), `least` for subnormal numbers, and very small for 0."""
    exponent = np.maximum(np.frexp(x)[1] - 1, least)
    return np.where(x == 0, -126, exponent).astype(np.int64)


def _cut(x: Array, exponent: NDArray[np.int64]) -> Array:
    """x truncated to 13 bits behind the point, its unit being 2^exponent."""
    unit = np.ldexp(1.0, exponent - 13)
    return np.asarray(np.trunc(x / unit) * unit)


def _tensor_core(a: Array, b: Array, c: Array, dtype: str, step: int) -> Array:
    """c + a b, [..., M, K] times [..., K, N], as Hopper and Ada do it: the model of MMA-Sim."""
    least = FORMATS[dtype].min_exponent
    for first in range(0, a.shape[-1], step):
        at = slice(first, first + step)
        left, right = a[..., at, None], b[..., None, at, :]
        terms = left * right
        exponents = _exponents(left, least) + _exponents(right, least)
        exponents = np.where(terms == 0, -252, exponents)
        of_c = _exponents(c, -126)
        largest = np.maximum(exponents.max(-2), of_c)
        total = _cut(terms, largest[..., None, :]).sum(-2) + _cut(c, largest)
        c = _cut(total, _exponents(total, -126))
    return c


def _dot(a: Block, b: Block, x: Inputs, style: Style, c: Block | None = None) -> Block:
    """c + a b as float32 [B, H, M, N]."""
    if style.mma is None:
        product = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
        return product if c is None else np.float32(c) + product
    start = np.zeros((*a.shape[:-1], b.shape[-1])) if c is None else np.asarray(c, np.float64)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return _tensor_core(a, b, start, x.dtype, style.mma).astype(np.float32)


def _factors(x: Inputs, mistake: str) -> tuple[Block, Block, Block]:
    """The factors [B, Hq, L, 1] of q, k and v, in float32; a mistake may be in them."""
    found = {}
    for of, tensor in (("q", x.q), ("k", x.k), ("v", x.v)):
        each = np.broadcast_to(x.descale(of), (*tensor.shape[:3], 1)).astype(np.float32)  # type: ignore[arg-type]
        if mistake == f"forgets {of}":
            each = np.ones_like(each)
        if mistake == f"{of} twice":
            each = each * each
        if mistake == f"wrong head of {of}":
            each = np.roll(each, 1, axis=1)
        if mistake == f"stale block of {of}":
            block = x.descale_block[of != "q"]
            each = each[:, :, np.maximum(np.arange(tensor.shape[2]) - block, 0)]
        found[of] = each if of == "q" else np.repeat(each, x.heads_per_kv, axis=1)
    if mistake == "k's for v's":
        found["v"] = found["k"]
    return found["q"], found["k"], found["v"]


def _scores(x: Inputs, style: Style, of_q: Block, of_k: Block) -> Block:
    """[B, Hq, Lq, Lk] in nats, -inf where hidden."""
    k = np.repeat(x.k, x.heads_per_kv, axis=1).swapaxes(2, 3)
    of_k = of_k.swapaxes(2, 3)
    scale = np.float32(x.exact_scale)
    if style.factors == "q and k" and style.mma is None:
        s = _dot(np.float32(x.q) * of_q, np.float32(k) * of_k, x, style) * scale
    elif style.factors == "scores":
        s = _dot(x.q, k, x, style) * of_q * of_k * scale
    else:
        s = _dot(x.q, k, x, style) * (scale * of_q * of_k)
    if x.softcap:
        cap = np.float32(x.softcap)
        s = cap * np.tanh(s / cap)
    return np.where(x.visible, s, np.float32(-np.inf)).astype(np.float32)


def _to(p: Block, dtype: str) -> Block:
    """P in the format in which it enters the product, as the hardware converts: it saturates."""
    largest = np.float32(FORMATS[dtype].max_finite)
    return np.minimum(p, largest).astype(NUMPY[dtype]).astype(np.float32)


def _rows(x: Inputs, style: Style, keys: slice, s: Block, of_v: Block) -> tuple[Block, Block]:
    """out, not rounded, and lse of the keys of a split."""
    b, h, len_q, _ = x.q.shape
    v = np.repeat(x.v, x.heads_per_kv, axis=1)[:, :, keys]
    s, of_v = s[..., keys], of_v[:, :, keys]
    m = np.full((b, h, len_q, 1), -np.inf, np.float32)
    l = np.zeros_like(m)
    acc = np.zeros((b, h, len_q, v.shape[3]), np.float32)
    octave, up = np.float32(np.log(2)), np.float32(2.0**style.offset)
    allowed = FORMATS[x.dtype].unit_roundoff / 4 - 4 * 2.0**-24
    per_block = of_v.shape[2] and style.value == "block"
    for first in range(0, s.shape[3], style.block):
        at = slice(first, first + style.block)
        top = np.maximum(m, s[..., at].max(-1, keepdims=True))
        new = np.where(top - m <= style.lag * octave, m, top)
        ref = np.where(np.isneginf(new), np.float32(0), new)
        alpha = np.exp(m - ref)
        p = np.exp(s[..., at].astype(np.float64) - ref)
        if style.exp:
            high = v[:, :, None, at].sum(-1) > 0
            p = p * np.where(high, 1 + allowed, 1 - allowed)
        p = (p * up).astype(np.float32)
        total = p.sum(-1, keepdims=True)
        if style.normalize_first:
            p = p / np.where(total == 0, ONE, total / up)
        rounded = _to(p, style.wide or x.dtype)
        if style.sum_rounded:
            total = rounded.sum(-1, keepdims=True)
        factor: Any = ONE
        values: Any = v[:, :, at]
        l = l * alpha + total
        if style.value == "v":
            values = np.float32(values) * of_v[:, :, at]
        elif per_block:
            # The factor of a block is the same for all its keys, or there is one a key.
            factor, same = of_v[:, :, at][:, :, :1], of_v[:, :, at] == of_v[:, :, at][:, :, :1]
            if not same.all():
                values, factor = np.float32(values) * of_v[:, :, at], ONE
        if style.promoted:
            acc = acc * alpha + _dot(rounded, values, x, style) * factor
        else:
            acc = _dot(rounded, values, x, style, acc * alpha)
        m = new
    if style.value == "result":
        acc = acc * of_v[:, :, :1]
    seen = l > 0
    out = acc / np.where(seen, up if style.normalize_first else l, ONE)
    back = ONE if style.mistake == "lse enlarged" else ONE / up
    lse = np.where(seen, m + np.log(np.where(seen, l * back, ONE)), np.float32(-np.inf))
    return out, lse


def run(x: Inputs, style: Style) -> tuple[Array, Array]:
    """out [B, Hq, Lq, Dv] and lse [B, Hq, Lq]."""
    with np.errstate(all="ignore"):
        of_q, of_k, of_v = _factors(x, style.mistake)
        s = _scores(x, style, of_q, of_k)
        n = s.shape[3]
        wide = -(-max(n, 1) // style.splits)
        found = [
            _rows(x, style, slice(i * wide, (i + 1) * wide), s, of_v) for i in range(style.splits)
        ]
        if x.sinks is not None:  # one part more, of value 0
            sink = np.broadcast_to(x.sinks.astype(np.float32)[:, None, None], (*x.q.shape[:3], 1))
            found.append((np.zeros_like(found[0][0]), sink))
        lses = np.stack([lse for _, lse in found])
        m = lses.max(0)
        w = np.exp(lses - np.where(np.isneginf(m), np.float32(0), m))
        l = w.sum(0)
        out: Any = sum(each * w_i for w_i, (each, _) in zip(w, found, strict=True))
        out = out / np.where(l == 0, ONE, l)
        lse = np.where(l == 0, m, m + np.log(np.where(l == 0, ONE, l)))
        rounded = np.asarray(out, np.float32).astype(NUMPY[style.out]).astype(np.float64)
    return rounded, lse[..., 0].astype(np.float64)


def ratio(x: Inputs, style: Style, contract: Contract | None = None) -> tuple[float, float]:
    """The largest error / bound of out and of lse, over elements that are in the contract."""
    at = float64.attention(x)
    limit = bound(x, at, style.contract if contract is None else contract, out_dtype=style.out)
    out, lse = run(x, style)
    return (
        _largest(np.abs(out - at.out) - at.out_radius, limit.out),
        _largest(np.where(lse == at.lse, 0.0, np.abs(lse - at.lse)) - at.lse_radius, limit.lse),
    )


def _largest(error: Array, limit: Array) -> float:
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(error <= 0, 0.0, error / limit)
    shares = np.where(np.isnan(shares), np.inf, shares)[np.isfinite(limit)]
    return float(shares.max(initial=0.0))


def usable(style: Style, x: Inputs) -> bool:
    """Whether the style can apply v's factor so: one for a whole result, or one a block."""
    one_each = x.v_descale is None or x.v_descale.ndim < 3 or x.v_descale.shape[2] == 1
    if style.mma is not None and style.value == "block" and not one_each:
        return style.block <= x.descale_block[1]
    return one_each or style.value != "result"


# -- the bound holds -----------------------------------------------------------------------


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_correct_kernel_stays_within_the_bound(dtype: str, name: str) -> None:
    style = STYLES[name](dtype)
    judged = 0
    for seed in range(96):
        x = _inputs(seed, dtype)
        chosen = (
            style if usable(style, x) else replace(style, value="block", block=16, promoted=True)
        )
        found = ratio(x, chosen)
        assert max(found) <= 1, (name, seed, FAMILIES[seed % len(FAMILIES)], found)
        judged += int(np.isfinite(bounds(x, style.contract).out).any())
    assert judged > 70


def bounds(x: Inputs, contract: Contract = Contract(), out: str | None = None) -> Bound:
    return bound(x, float64.attention(x), contract, out_dtype=out)


def test_a_shortened_accumulator_loses_what_its_bound_says_and_nearly_all_of_it() -> None:
    rng = np.random.Generator(np.random.PCG64(1))
    worst = 0.0
    for _ in range(300):
        n, step = int(rng.integers(1, 140)), int(rng.choice([16, 32]))
        a, b = rng.normal(size=(1, n)), rng.normal(size=(n, 1))
        kind = rng.choice(["any", "subnormal", "one large"])
        if kind == "subnormal":
            a, b = a * 2.0**-8, b * 2.0**-6
        if kind == "one large":  # the others lie just below what is kept
            a, b = np.full((1, n), 1.875 * 2.0**-6), np.full((n, 1), 2.0**-8)
            a[:, 0] = b[0] = 1.0
        a, b = (x.astype(NUMPY[E4]).astype(np.float64) for x in (a, b))
        x = Inputs(E4, a[None, None], b.T[None, None], np.ones((1, 1, 1, 1)), scale=1.0)
        limit = cut_scores(x, arithmetic(E8M13, E4))[0, 0, 0, 0]
        got = _tensor_core(a, b, np.zeros((1, 1)), E4, step)
        error = abs(got - a @ b)[0, 0]
        assert error <= limit
        worst = max(worst, error / limit if limit else 0.0)
    assert worst > 0.7


@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_scaled_factor_that_is_subnormal_is_cut_as_a_normal_one(dtype: str) -> None:
    """q is normal, q times the scale, rounded to float8, is not: the core aligns it too far up."""
    contract = replace(E8M13, scale_in_input_dtype=True)
    least = FORMATS[dtype].min_normal
    q, k = np.full((1, 32), least), np.full((32, 1), 1.5 * 2.0**-8)
    k[0] = 16.0
    x = Inputs(dtype, q[None, None], k.T[None, None], np.ones((1, 1, 1, 1)), scale=0.25)
    got = _tensor_core(q / 4, k, np.zeros((1, 1)), dtype, 32)
    error = abs(got - q @ k / 4)[0, 0]
    assert error <= cut_scores(x, arithmetic(contract, dtype))[0, 0, 0, 0]
    assert error > cut_scores(x, arithmetic(E8M13, dtype))[0, 0, 0, 0]


def test_factors_of_float32_underflow_where_all_else_is_float64() -> None:
    wide = Contract(qk="float64", statistics="float64", accumulator="float64", exp_error=0.0)
    one = np.ones((1, 1, 1, 1))
    # The product of both factors has three bits left, or that of v's factor and 1 / l none.
    a, b = np.float32(1.3 * 2.0**-75), np.float32(1.3 * 2.0**-71)
    x = Inputs(E4, one, one, one, scale=2.0**115, q_descale=np.array(a, float),
               k_descale=np.array(b, float))  # fmt: skip
    error = float(a * b) * 2.0**115 - float64.attention(x).lse
    assert 2.0**-40 < abs(error).max() <= bounds(x, wide).lse.max()
    x = Inputs(E5, one, np.ones((1, 1, 4, 1)), np.full((1, 1, 4, 1), 57344.0),
               v_descale=np.array(2.0**-140))  # fmt: skip
    l = np.float32(4 * 2.0**13)
    out = float(np.float32(2.0**-140) / l) * 57344.0 * float(l)
    assert out == 0
    assert (float64.attention(x).out <= bounds(x, wide).out).all()


# -- mistakes leave it ---------------------------------------------------------------------


def _dominant(seed: int, dtype: str, late: float) -> Inputs:
    """Equal scores, then 16 keys `late` nats above them, with another value."""
    rng = np.random.Generator(np.random.PCG64(seed))
    n = int(rng.choice([48, 64, 80]))
    k = np.zeros((1, 1, n, 8))
    k[:, :, -16:] = 1.0
    v = np.ones((1, 1, n, 4))
    v[:, :, -16:] = -4.0
    q = np.full((1, 1, 2, 8), 1.0)
    return Inputs(dtype, q, k, v, scale=float(np.float32(late / 8)))


@pytest.mark.parametrize("late", [1.5, 2.0, 2.7])
def test_a_lag_that_saturates_p_leaves_the_bound(late: float) -> None:
    """FlashAttention-4 shipped with threshold 4 and offset 8: lse was right, out was not."""
    bug, fix = Style(offset=8.0, lag=4.0), Style(offset=4.0, lag=4.0)
    for seed in range(5):
        x = _dominant(seed, E4, late)
        assert ratio(x, bug)[0] > 1
        assert ratio(x, bug)[1] < 1
        assert max(ratio(x, fix)) < 1


MISTAKES = (
    "forgets q", "forgets k", "forgets v", "q twice", "k twice", "v twice", "k's for v's",
    "wrong head of q", "wrong head of k", "wrong head of v",
    "stale block of q", "stale block of k", "stale block of v", "lse enlarged",
)  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("dtype", FLOAT8)
def test_a_mistake_leaves_the_bound(dtype: str, mistake: str) -> None:
    caught = 0
    for seed in range(20):
        x = _factored(seed, dtype, "block" if "block" in mistake else "head")
        style = Style(offset=OFFSET[dtype], factors="scores", block=16)
        assert max(ratio(x, style)) <= 1
        caught += max(ratio(x, replace(style, mistake=mistake))) > 1
    assert caught >= 15


def _factored(seed: int, dtype: str, kind: str) -> Inputs:
    """Two key heads, 64 keys, factors that differ by more than 2 from each other."""
    rng = np.random.Generator(np.random.PCG64(seed))
    shape: tuple[int, ...] = (1, 2) if kind == "head" else (1, 2, 4)
    low, high = rng.integers(20, 40) / 64, rng.integers(96, 256) / 64
    changing = np.where(np.indices(shape)[-1] % 2 == 0, low, high)
    x = _inputs(seed, dtype, "random")
    q, k, v = (rng.normal(size=size) for size in ((1, 4, 16, 64), (1, 2, 64, 64), (1, 2, 64, 4)))
    q, k, v = (each.astype(NUMPY[dtype]).astype(np.float64) for each in (q, k, v))
    return x.with_(
        q=q, k=k, v=v, q_descale=changing, k_descale=changing[:, ::-1] * 0.75,
        v_descale=changing * 2.5, descale_block=(4, 16), scale=None, enable_gqa=True,
        is_causal=False, softcap=0.0, sinks=None,
    )  # fmt: skip


def test_a_shortened_accumulator_that_is_not_declared_leaves_the_bound_of_lse() -> None:
    contract = Contract(exp_error=2.0**-21)
    short = Style(mma=32, contract=contract)
    rng = np.random.Generator(np.random.PCG64(0))
    q, k = (FORMATS[E4].round(rng.uniform(0.5, 2, (1, 1, 8, 128))) for _ in range(2))
    x = Inputs(E4, q, k, np.ones((1, 1, 8, 2)))
    assert ratio(x, replace(short, mma=None))[1] <= 1
    assert ratio(x, short)[1] > 1
    assert max(ratio(x, replace(short, contract=replace(E8M13, exp_error=2.0**-21)))) <= 1


# -- the exact value -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOAT8)
def test_the_tiers_agree(dtype: str) -> None:
    for seed in range(16):
        x = _inputs(seed, dtype)
        at = float64.attention(x)
        rows = [(0, x.q.shape[1] - 1, 0), (x.q.shape[0] - 1, 0, x.q.shape[2] - 1)]
        exact, pairs = definition.attention(x, rows), double_double.attention(x)
        for row in rows:
            out = exact.out[row]
            assert (np.abs(at.out[row] - out) <= at.out_radius[row] + exact.out_radius[row]).all()
            assert abs(at.lse[row] - exact.lse[row]) <= at.lse_radius[row] + exact.lse_radius[row]
            apart = np.abs((pairs.out[row] - out) + (pairs.out_low[row] - exact.out_low[row]))
            assert (apart <= pairs.out_radius[row] + exact.out_radius[row]).all()
        assert np.nanmax(at.out_radius / np.maximum(bounds(x).out, 1e-300)) < 0.01


@pytest.mark.parametrize("kind", ["number", "head", "query head", "block"])
def test_factors_mean_attention_on_the_products(kind: str) -> None:
    """Factors of few bits: the products are float32 numbers."""
    rng = np.random.Generator(np.random.PCG64(3))
    q, k, v = (
        FORMATS[E4].round(rng.normal(size=s)) for s in ((2, 4, 5, 3), (2, 2, 7, 3), (2, 2, 7, 2))
    )

    def factor(*shape: int) -> Array:
        return np.ldexp(rng.integers(1, 1000, shape), -8)

    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "number": ((), (1,), (1, 1)),
        "head": ((2, 2), (2, 2), (1, 2)),
        "query head": ((2, 4), (2, 2), (2, 1)),
        "block": ((2, 2, 3), (1, 2, 2), (2, 1, 2)),
    }
    of_q, of_k, of_v = (factor(*shape) for shape in shapes[kind])
    x = Inputs(
        E4, q, k, v, enable_gqa=True, q_descale=of_q, k_descale=of_k, v_descale=of_v,
        descale_block=(2, 4),
    )  # fmt: skip
    q, k, v = q.copy(), k.copy(), v.copy()
    for b, h, i in np.ndindex(2, 4, 5):
        f = of_q.reshape(-1)[0]
        if kind != "number":
            heads = of_q.shape[1]
            f = of_q[b, h * heads // 4] if kind != "block" else of_q[b, h // 2, i // 2]
        q[b, h, i] = q[b, h, i] * f
    for b, h, j in np.ndindex(2, 2, 7):
        for tensor, given in ((k, of_k), (v, of_v)):
            at = (b, h, j // 4)[: given.ndim]
            at = tuple(0 if n == 1 else c for n, c in zip(given.shape, at, strict=True))
            tensor[b, h, j] = tensor[b, h, j] * given[at]
    plain = Inputs("float32", q, k, v, enable_gqa=True)
    for tier in (definition.attention, double_double.attention):
        assert np.abs(tier(x).out - tier(plain).out).max() < 1e-15
        assert np.abs(tier(x).lse - tier(plain).lse).max() < 1e-15
    assert np.abs(float64.attention(x).out - definition.attention(plain).out).max() < 1e-14


def test_rows_of_a_call_have_its_factors() -> None:
    for seed in (0, 3, 7, 9):
        x = _inputs(seed, E4)
        rows = [(x.q.shape[0] - 1, x.q.shape[1] - 1, i) for i in range(x.q.shape[2])][::-1]
        at, limit = float64.attention(x), bounds(x)
        for chosen, part in parts(x, rows):
            of_part = float64.attention(part)
            for i, row in enumerate(chosen):
                assert np.allclose(of_part.out[0, 0, i], at.out[row], rtol=1e-12)
                assert np.allclose(bounds(part).out[0, 0, i], limit.out[row], rtol=1e-6)


def test_the_oracle_takes_the_definition_where_float64_does_not_decide() -> None:
    x = _inputs(1, E4, "random")
    at, limit = float64.attention(x), bounds(x)
    value = oracle.evaluate(x, at, limit.out * 1e-13, limit.lse * 1e-13)
    assert "mpmath" in value.tier
    assert np.allclose(value.out, at.out, rtol=1e-12, atol=1e-300)


# -- declarations and refusals -------------------------------------------------------------


def test_a_declared_offset_narrows_what_p_loses() -> None:
    x = _inputs(2, E4, "underflow", v_descale=None, sinks=None, is_causal=False)
    assert x.k.shape[2] > 8
    loose, tight = bounds(x), bounds(x, Contract(p_offset=8.0))
    assert (tight.out < loose.out / 1.5).all()
    # A kernel that does not enlarge P breaks that promise here, and no other.
    assert ratio(x, Style())[0] <= 1 < ratio(x, Style(), Contract(p_offset=8.0))[0]
    assert arithmetic(Contract(p_offset=8.0), E4).lag == pytest.approx(np.log2(448) - 8)


@pytest.mark.parametrize(
    ("dtype", "contract"),
    [
        (E4, Contract(rescale_threshold=4.0, p_offset=8.0)),
        (E4, Contract(p_offset=8.81)),
        (E4, Contract(rescale_threshold=8.81)),
        (E5, Contract(rescale_threshold=8.0, p_offset=8.0)),
        ("bfloat16", Contract(p_dtype=E4, rescale_threshold=1.0, p_offset=8.0)),
        ("float16", Contract(rescale_threshold=8.0, p_offset=8.0)),
    ],
)
def test_a_declaration_that_lets_p_saturate_is_refused(dtype: str, contract: Contract) -> None:
    with pytest.raises(ValueError, match="P saturates: their sum must stay below"):
        arithmetic(contract, dtype)
    arithmetic(replace(contract, p_offset=4.0, rescale_threshold=4.0), dtype)


@pytest.mark.parametrize("field", ["qk", "accumulator"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_e8m13_is_for_float8_only(dtype: str, field: str) -> None:
    contract = Contract(**{field: "e8m13"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="e8m13 is the accumulator of float8 tensor cores"):
        arithmetic(contract, dtype)
    for narrow_one in FLOAT8:
        x = _inputs(8, narrow_one, "random")
        assert (bounds(x, contract).out > bounds(x).out).any()


def test_offsets_must_be_octaves() -> None:
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="p_offset is"):
            Contract(p_offset=wrong)


def test_the_output_has_its_own_dtype() -> None:
    x = _inputs(0, E4, "random")
    assert (bounds(x).out == bounds(x, out="bfloat16").out).all()
    assert (bounds(x, out="float16").out < bounds(x).out).all()
    with pytest.raises(ValueError, match="it is bfloat16 or float16"):
        bounds(x, out=E4)
    with pytest.raises(ValueError, match="of float32 it is float32"):
        arithmetic(Contract(), "float32", out_dtype="float16")


def test_scores_whose_maximum_cannot_be_rounded_without_saturating_p_are_out_of_range() -> None:
    one = np.full((1, 1, 1, 1), 256.0)
    x = Inputs(E4, one, one, np.ones((1, 1, 1, 1)), scale=1.0)
    assert np.isfinite(bounds(x).out).all()
    for contract in (Contract(), Contract(p_offset=0.0), Contract(p_offset=8.0)):
        assert np.isinf(bounds(x.with_(scale=8.0), contract).out).all()
    wide = Contract(p_dtype="float32")
    assert np.isfinite(bounds(x.with_(scale=8.0), wide).out).all()


def test_factors_that_overflow_in_some_order_are_out_of_range() -> None:
    x = _inputs(0, E4, "random", softcap=0.0, sinks=None, scale=2.0**-100)
    x = x.with_(q_descale=np.array(2.0**60), k_descale=np.array(2.0**40))
    assert np.isfinite(bounds(x).out).all()
    assert np.isinf(bounds(x.with_(k_descale=np.array(2.0**64))).out).all()


def test_a_sink_that_overflows_once_it_is_enlarged_is_out_of_range() -> None:
    one, contract = np.ones((1, 1, 1, 1)), Contract(p_offset=8.0)
    for sink, fits in ((81.0, True), (86.0, False)):  # exp(85) is below 2^128, exp(85) 2^8 above
        x = Inputs(E4, one, one, one, sinks=np.array([sink]))
        assert (np.exp(sink - 1) * 2.0**8 < FORMATS["float32"].max_finite) == fits
        assert np.isfinite(bounds(x, contract).lse).all() == fits


def test_a_sink_is_all_that_there_is_where_there_is_no_key() -> None:
    q, none = np.ones((1, 2, 3, 4)), np.ones((1, 2, 0, 4))
    x = Inputs(E4, q, none, none, sinks=np.array([3.0, -1.0]))
    found = bounds(x)
    assert (found.out == 0).all()
    assert (found.lse < 0.02).all()  # a quarter of a unit of e4m3 for exp


def test_factors_that_overflow_by_themselves_are_out_of_range() -> None:
    """Infinity times what is tiny, hidden or 0 is infinite or NaN."""
    tiny = np.full((1, 1, 1, 1), 2.0**-16)
    x = Inputs(E5, tiny, tiny, tiny, scale=2.0**-110, q_descale=np.array(2.0**60))
    for factor, fits in ((2.0**60, True), (2.0**70, False)):  # a b, before the scale
        assert np.isfinite(bounds(x.with_(k_descale=np.array(factor))).out).all() == fits
    # The scale times log2(e), in any dtype.
    smaller = np.full((1, 1, 1, 1), 2.0**-63)
    x = Inputs("float32", smaller, smaller, smaller)
    for scale, fits in ((2.0**120, True), (1.5 * 2.0**127, False)):
        assert np.isfinite(bounds(x.with_(scale=scale)).out).all() == fits
    # The second block is hidden, and its values times their factor overflow; or v is 0.
    one, v = np.ones((1, 1, 1, 1)), np.full((1, 1, 4, 1), 448.0)
    x = Inputs(E4, one, np.ones_like(v), v, is_causal=True, descale_block=(1, 2))
    for factor, fits in ((2.0**100, True), (2.0**121, False)):
        of_v = np.array([[[1.0, factor]]])
        assert np.isfinite(bounds(x.with_(v_descale=of_v)).out).all() == fits
    x = Inputs(E4, one, one, 0 * one, v_descale=np.array(2.0**127))  # divided by l below 1
    assert np.isinf(bounds(x).out).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q_descale": np.ones((2, 3))}, "q_descale has shape [2, 3]; it must be a number, [B"),
        ({"v_descale": np.ones((1, 1, 3))}, "v_descale has shape [1, 1, 3]"),
        ({"k_descale": np.ones(2)}, "k_descale has shape [2]"),
        ({"k_descale": np.array(0.1)}, "k_descale must hold finite float32 numbers"),
        ({"k_descale": np.array(np.inf)}, "k_descale must hold finite float32 numbers"),
        ({"descale_block": (0, 1)}, "a block has 1 position or more"),
        ({"dtype": "bfloat16", "k_descale": np.array(2.0)}, "k_descale is for float8 only"),
    ],
)
def test_factors_that_fit_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    one = np.ones((1, 1, 4, 2))
    with pytest.raises(ValueError, match=re.escape(message)):
        Inputs(E4, one, one, one).with_(**changes)


def test_gradients_of_float8_are_refused() -> None:
    x = _inputs(0, E4)
    with pytest.raises(NotImplementedError, match="float8"):
        backward(x, np.zeros(0), float64.attention(x))


# -- tensors and results that are at hand --------------------------------------------------


def _torch(x: Inputs) -> tuple[torch.Tensor, ...]:
    kind = getattr(torch, x.dtype)
    return tuple(torch.from_numpy(each).to(kind) for each in (x.q, x.k, x.v))


@pytest.mark.parametrize("out", ["bfloat16", "float16"])
def test_a_result_at_hand_is_judged_by_its_dtype_and_its_factors(out: str) -> None:
    x = _factored(3, E4, "block")
    given = {name: torch.from_numpy(getattr(x, name)).float() for name in x.factors}
    at_hand = flashcheck.inputs_of(
        *_torch(x),
        enable_gqa=True,
        descale_block=(4, 16),
        **given,  # type: ignore[arg-type]
    )
    got, lse = run(x, Style(out=out))
    result = torch.from_numpy(got).to(getattr(torch, out)), torch.from_numpy(lse).float()
    check = flashcheck.assert_within_bound(result, at_hand)
    assert 0 < check.ratio <= 1
    assert flashcheck.assert_within_bound(result, at_hand, rows=7).ratio <= 1
    with pytest.raises(CheckFailed, match="times the bound"):
        flashcheck.assert_within_bound(result, at_hand.with_(v_descale=None))
    with pytest.raises(CheckFailed):
        flashcheck.assert_within_bound(result[0].float(), at_hand)


def test_factors_of_torch_are_numbers_or_float32() -> None:
    x = _inputs(0, E5, "random", enable_gqa=True)
    at_hand = flashcheck.inputs_of(*_torch(x), enable_gqa=True, v_descale=0.5)
    assert (at_hand.exact_v == x.v / 2).all()
    with pytest.raises(ValueError, match="v_descale is float64; it must be float32"):
        flashcheck.inputs_of(
            *_torch(x), enable_gqa=True, v_descale=torch.ones((), dtype=torch.float64)
        )


def test_a_recipe_gives_float8_tensors_and_a_kernel_in_process_runs_on_them() -> None:
    problem = Problem(
        dtype=E4, len_q=3, len_k=5, dim=8, dim_v=8, k=Fill(noise="normal"), v=Fill(noise="normal")
    )
    assert [t.dtype for t in problem.tensors()] == [torch.float8_e4m3fn] * 3

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        s = query.float() @ key.float().mT / query.shape[-1] ** 0.5
        return (torch.softmax(s, -1) @ value.float()).to(torch.float16)

    assert flashcheck.assert_within_bound(kernel(*problem.tensors()), problem).ratio <= 1
    with InProcess(Kernel(kernel)) as runner:
        assert runner.call(Call(problem.inputs())).out_dtype == "float16"
        refused = runner.call(Call(problem.inputs().with_(k_descale=np.array(2.0))))
        assert refused.status == "unsupported"
        assert "does not name the option 'k_descale'" in refused.message
