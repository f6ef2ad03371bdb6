r"""The forward error bound, per element of out and lse, derived from the numeric contract.

Notation (row i fixed; j runs over the keys that the row sees, n = Lk):
s_j score, m = max s_j, D_j = m - s_j, w_j = e^{-D_j}, l = sum w_j, p_j = w_j / l,
o = sum p_j v_j, A_j = |scale| sum_c |q_c k_jc|; u unit roundoff of the statistics, u_p of P,
u_o of the output; gamma_n = n u / (1 - n u). docs/bound.md has the derivation at length.

1. Score. Any order of summation and four more roundings a term:
   delta_j = gamma_{D+4} A_j (+ bias: u (2 |b_j| + |s_j|)) + underflow.
2. Weight. The argument of exp is off by at most arg_j = u (|s_j| + |m| + 5 D_j) in computed
   quantities, exp by e_x, the rescale factors of one term together by (8 + n) u:
   r_j = arg_j - log(1 - e_x) - log(1 - (8 + n) u).
   The score's error enters numerator and normalizer alike; the rest need not, since a
   kernel may evaluate exp once for the normalizer and again for P (exp(s - lse)).
3. T = min(sum p_j |v_j - o| (e^{delta_j} - 1) / sum p_j e^{-delta_j}, max |v_j - o|) is the
   softmax's conditioning. With q_j = min(1, p_j e^{delta_j} / sum p e^{-delta}):
   N = sum q_j |v_j| ((1 + u)(1 + gamma_acc) e^{r_j} - 1)         products and sums
   R = u_p max(sum q_j |v_j|, sum q_j |v_j - o| + T)              P rounded; normalizer from
                                                                  P before or after rounding
   M = (|o| + T) sum q_j ((1 + gamma_l) e^{r_j} - 1)              normalizer
   U = underflow of P, of exp, of products and rescales           absolute
   X = T + (N + R e^{max r}(1 + gamma_acc) + M + U) / (1 - the normalizer's relative error)
4. Division (4 u: reciprocals and their approximations) and one rounding:
   E = X' + u_o (|o| + X') + kappa_o,  X' = X + 4 u (|o| + X).

lse: |lse^ - lse| <= min(sum p_j (e^{H_j} - 1), max H_j) + the errors of the logarithm and of
the final sum, with H_j = delta_j + r_j + gamma_l: here common factors do not cancel.

Outside the contract's range the bound is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flashcheck.formats import FORMATS, Array, Bools, Format
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle.float64 import Attention, gamma

EXP_FLUSH = 2.0**-124
"""An exp below this may be flushed to zero (the contract)."""

LOG_ERROR = 2.0**-21.41
"""Absolute error of a fast float32 logarithm near 1 (CUDA Programming Guide: __logf)."""

EVALUATION = 1 + 2.0**-30
"""The bound is itself evaluated in float64, in fewer than 2^20 roundings of nonnegative terms."""

LAG = 16.0
"""Octaves by which a running maximum may lag by default: 2^16 overflows P in float16."""

WILD = 100.0
"""Score errors beyond which any key may carry all the weight."""

CHUNK = 1 << 20
"""Elements of the largest temporary array."""


@dataclass(frozen=True, eq=False)
class Bound:
    """Per-element bounds: out [B, Hq, Lq, Dv], lse [B, Hq, Lq]; infinite outside the contract.

    `vacuous` marks elements of out about which the bound says too little: infinite, or at
    least half of the largest |v| that the row sees, unless a law fixes the value.
    """

    out: Array
    lse: Array
    vacuous: Bools


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A contract's numbers for one dtype and device.

    u: unit roundoff of the statistics; qk, acc: of the two products' sums (a tensor core
    truncates, which doubles it); input_error: relative error of each factor of q.k;
    exp: relative error of exp; p: format of P or None where P is not rounded further;
    eta: absolute error of a float32 result that underflows; limit: a quarter of the largest
    finite statistic; scaled: format to which q or k times scale is rounded, or None; lag:
    octaves by which the running maximum may stay behind.
    """

    u: float
    qk: float
    acc: float
    input_error: float
    exp: float
    p: Format | None
    eta: float
    flushes: bool
    limit: float
    out: Format
    normalizer: str
    scaled: Format | None
    lag: float


def arithmetic(contract: Contract, dtype: str, device: str = "cpu") -> Arithmetic:
    """Resolve the contract's table for a dtype on a device."""
    fmt = FORMATS[dtype]
    wide = FORMATS["float64" if dtype == "float64" else contract.statistics]
    half = fmt.precision < 24
    # The narrowest format of the three decides where a result underflows.
    stages = (contract.qk, contract.statistics, contract.accumulator)
    narrow = all(stage == "float64" for stage in stages) or dtype == "float64"
    least = FORMATS["float64" if narrow else "float32"]
    on_gpu = device.startswith("cuda")
    flushes = on_gpu if contract.flushes_subnormals is None else contract.flushes_subnormals
    flushes = flushes and dtype != "float64"
    unit = {"float64": 2.0**-53}
    qk_name = "float64" if dtype == "float64" else contract.qk
    acc_name = "float64" if dtype == "float64" else contract.accumulator
    # A tensor core may truncate its sums instead of rounding them.
    truncation = 2.0 if on_gpu and (half or qk_name.startswith("tf32")) else 1.0
    # TF32 keeps 11 bits of each factor and may truncate. Of three TF32 products the fourth is
    # left out, and each factor's second part is truncated: 3 * 2^-20 a product.
    input_error = {"tf32": 2.0**-10, "tf32x3": 1.5 * 2.0**-20}.get(qk_name, 0.0)
    exp = contract.exp_error
    if exp is None:
        exp = fmt.unit_roundoff / 4 if half else 8 * wide.unit_roundoff
    p = FORMATS[contract.p_dtype] if contract.p_dtype else (fmt if half else None)
    return Arithmetic(
        u=wide.unit_roundoff,
        qk=unit.get(qk_name, 2.0**-24) * truncation,
        acc=unit.get(acc_name, 2.0**-24) * truncation,
        input_error=input_error,
        exp=exp,
        p=p,
        eta=least.min_normal if flushes else least.underflow,
        flushes=flushes,
        limit=FORMATS["float64" if dtype == "float64" else "float32"].max_finite / 4,
        out=fmt,
        normalizer=contract.normalizer,
        scaled=fmt if contract.scale_in_input_dtype else None,
        lag=max(LAG, contract.rescale_threshold),
    )


def bound(x: Inputs, at: Attention, contract: Contract, device: str = "cpu") -> Bound:
    """The bound on |out - exact out| and |lse - exact lse| of a kernel that keeps `contract`.

    `at` is the float64 tier's evaluation of the same inputs.
    """
    ar = arithmetic(contract, x.dtype, device)
    n = x.k.shape[2]
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        delta = _score_error(x, at, ar)
        delta_max = delta.max(-1, keepdims=True, initial=0.0)
        gap = np.where(x.visible, at.m[..., None] - at.s, 0.0)
        magnitude = np.abs(at.s) + np.abs(at.m)[..., None] + 5 * gap
        r = np.where(
            x.visible,
            ar.u * (magnitude + 6 * (delta + delta_max))
            - math.log1p(-ar.exp)
            - math.log1p(-min((8 + n) * ar.u, 0.5)),
            0.0,
        )
        out, largest = _out_bound(x, at, ar, delta, r)
        lse = _lse_bound(at, ar, delta, r, n)
        inside = _in_contract(x, at, ar, delta_max[..., 0])
        out = np.where(np.abs(at.out) + out < ar.out.max_finite, out, np.inf)
        # The weights at hand are themselves off by this much.
        slack = EVALUATION * np.exp(np.minimum(4 * at.lse_radius, 1.0))
    # A row that sees no key is fixed by the contract, if its hidden scores fit.
    out = np.where(at.seen[..., None], out * slack[..., None], 0.0)
    lse = np.where(at.seen, lse * slack, 0.0)
    out = np.where(np.isnan(out) | ~inside[..., None], np.inf, out)
    lse = np.where(np.isnan(lse) | ~inside, np.inf, lse)
    vacuous = (~np.isfinite(out) | (out >= largest / 2)) & (largest > 0)
    return Bound(out, lse, vacuous & at.seen[..., None])


def _score_error(x: Inputs, at: Attention, ar: Arithmetic) -> Array:
    """delta_j [B, Hq, Lq, Lk], 0 where the key is hidden."""
    d = x.q.shape[3]
    # The sums in one format, the scale in another; its root on each side makes five roundings.
    relative = (1 + gamma(d, ar.qk)) * (1 + gamma(5, ar.u)) * (1 + ar.input_error) ** 2 - 1
    if ar.scaled is not None:
        relative = (1 + relative) * (1 + ar.scaled.unit_roundoff) - 1
    delta = relative * at.a
    # Underflow: a product, a pre-scaled factor or a sum of them may lose eta; log2(e) folded
    # into the scale enlarges it by 1.45. A scale that is itself subnormal costs eta times the
    # raw sum.
    stretch = 1.45 * ar.eta * max(1.0, abs(x.exact_scale))
    k_sum = np.repeat(np.abs(x.k).sum(-1), x.heads_per_kv, axis=1)[:, :, None, :]
    q_sum = np.abs(x.q).sum(-1)[..., None]
    delta = delta + stretch * (2 * d + 2 + k_sum + q_sum) + 1.45 * ar.eta * at.raw
    if ar.scaled is not None:
        delta = delta + ar.scaled.underflow * (k_sum + q_sum)
    if x.bias is not None:
        delta = delta + ar.u * (2 * np.abs(x.bias) + np.abs(at.s) + delta) + 2 * ar.eta
    return np.where(x.visible, delta, 0.0)


def _out_bound(
    x: Inputs, at: Attention, ar: Arithmetic, delta: Array, r: Array
) -> tuple[Array, Array]:
    """(the bound, the largest |v| that the row sees), each [B, Hq, Lq, Dv]."""
    n = x.k.shape[2]
    p = at.p
    abs_v = np.abs(at.v)
    grow = np.expm1(np.minimum(delta, 300.0))
    shrunk = np.maximum((p * np.exp(-delta)).sum(-1, keepdims=True), 1e-300)
    # q_j bounds the share of key j however the scores err. Where they err wildly any key may
    # have all of it, and the output is still an average of the values seen.
    wild = delta.max(-1, keepdims=True, initial=0.0) > WILD
    q = np.minimum(p * (1 + grow) / shrunk, np.where(p > 0, 1.0, 0.0))
    q = np.where(wild, np.where(x.visible, 1.0, 0.0), q)
    c = np.where(wild, np.where(x.visible, 1e300, 0.0), p * grow / shrunk)
    growth = np.exp(np.minimum(r, 300.0))
    conditioning, spread, largest = _centred(x.visible, c, q * growth, at)

    gamma_acc = gamma(2 * n + 3, ar.acc)
    gamma_l = gamma(2 * n + 3, ar.u)
    # P normalized first divides each term: 4 u.
    products = (q * ((1 + 4 * ar.u) * (1 + gamma_acc) * growth - 1)) @ abs_v
    normalizer = (q * ((1 + gamma_l) * growth - 1)).sum(-1, keepdims=True)
    rounding = np.zeros_like(at.out)
    lost = np.zeros_like(p)
    if ar.p is not None:
        u_p = ar.p.unit_roundoff
        before = (q * growth) @ abs_v if ar.normalizer != "after_rounding" else rounding
        after = spread + (q * growth).sum(-1, keepdims=True) * conditioning
        rounding = u_p * (1 + gamma_acc) * np.maximum(before, after)
        # P's rounding meets the other errors where it enters the normalizer too.
        products, normalizer = products * (1 + 4 * u_p), normalizer * (1 + 4 * u_p)
        kappa = ar.p.min_normal if ar.flushes and ar.p.min_exponent < -100 else 0.0
        kappa = max(kappa, ar.p.underflow)
        # Only a weight that can lie below P's smallest normal number underflows. Normalized
        # first, P is smallest: p_j itself.
        small = p * np.exp(-2 * np.minimum(delta + r, 300.0).max(-1, keepdims=True, initial=0.0))
        lost = np.where(x.visible & (small < ar.p.min_normal), kappa, 0.0)
    # Weights: exp flushed in P; in a rescale factor, of terms that a lagging maximum lets reach
    # 2^lag; and P / l underflowing.
    flushed = EXP_FLUSH * (1 + 2.0**ar.lag)
    lost = np.where(x.visible, lost + flushed + 2 * ar.eta, 0.0)
    # Products, rescales and, where results may flush, sums; twice for merged splits.
    underflow = lost @ abs_v + (4 * n + 6) * ar.eta
    lost_sum = lost.sum(-1, keepdims=True) + n * ar.eta
    relative = normalizer + lost_sum
    if ar.p is not None:
        relative = relative + ar.p.unit_roundoff
    centre = np.abs(at.out) + conditioning
    rest = (products + rounding + underflow + centre * (normalizer + lost_sum)) / np.maximum(
        1 - relative, 1e-300
    )
    rest = np.where(relative < 0.9, rest, np.inf)
    inner = conditioning + rest
    inner = inner + 4 * ar.u * (np.abs(at.out) + inner)
    wide_range = ar.out.min_exponent < -100
    tail = ar.out.underflow + (ar.out.min_normal if ar.flushes and wide_range else 0.0)
    return inner + ar.out.unit_roundoff * (np.abs(at.out) + inner) + tail, largest


def _centred(seen: Bools, c: Array, q: Array, at: Attention) -> tuple[Array, Array, Array]:
    """Sums about the output, each [B, Hq, Lq, Dv], over the keys that a row sees:

    min(sum c_j |v_j - o|, max |v_j - o|), sum q_j |v_j - o| and max |v_j|.
    |v_j - o| is taken with the radius of o added, so that it is never too small.
    """
    b, h, rows, n = c.shape
    dv = at.v.shape[3]
    conditioning, spread, largest = (np.empty_like(at.out) for _ in range(3))
    step = max(1, CHUNK // max(n * dv * h * b, 1))
    for i in range(0, rows, step):
        part = slice(i, i + step)
        o = at.out[:, :, part, None, :]
        away = np.abs(at.v[:, :, None] - o) + at.out_radius[:, :, part, None, :]
        weights = np.stack([c[:, :, part], q[:, :, part]], axis=3)
        sums = weights @ away
        cap = np.where(seen[:, :, part, :, None], away, 0.0).max(3, initial=0.0)
        conditioning[:, :, part] = np.minimum(sums[..., 0, :], cap)
        spread[:, :, part] = sums[..., 1, :]
        shown = np.where(seen[:, :, part, :, None], np.abs(at.v)[:, :, None], 0.0)
        largest[:, :, part] = shown.max(3, initial=0.0)
    return conditioning, spread, largest


def _lse_bound(at: Attention, ar: Arithmetic, delta: Array, r: Array, n: int) -> Array:
    gamma_l = gamma(2 * n + 3, ar.u)
    h = delta + r + gamma_l
    if ar.normalizer != "before_rounding" and ar.p is not None:
        h = h + ar.p.unit_roundoff * (1 + gamma_l)
    wild = delta.max(-1, initial=0.0) > WILD
    mean = np.where(wild, np.inf, (at.p * np.expm1(np.minimum(h, 300.0))).sum(-1))
    counts = (at.p > 0) | (wild[..., None] & (r > 0))
    worst = np.where(counts, h, 0.0).max(-1, initial=0.0)
    # With a lagging maximum m is smaller and log l larger by as much.
    log_l = np.log(np.maximum(at.l, 1.0)) + ar.lag * math.log(2)
    log_error = LOG_ERROR if ar.u > 2.0**-50 else 4 * ar.u
    flush = n * (EXP_FLUSH * (1 + 2.0**ar.lag) + 3 * ar.eta)
    if ar.normalizer != "before_rounding" and ar.p is not None:
        flush = flush + n * ar.p.min_subnormal
    final = ar.u * (6 * np.abs(at.m) + 8 * log_l + 4 * np.abs(at.lse)) + ar.eta
    scores = 10 * ar.u * delta.max(-1, initial=0.0)
    return np.asarray(np.minimum(mean, worst) + log_error + flush + final + scores, np.float64)


def _in_contract(x: Inputs, at: Attention, ar: Arithmetic, delta_max: Array) -> Bools:
    """[B, Hq, Lq]: whether the row's intermediate values fit (contract, "problems whose ...").

    Hidden keys count: what overflows there is infinity minus infinity before it is hidden.
    """
    scale = max(1.0, abs(x.exact_scale))
    k_max = np.abs(x.k).max((2, 3), initial=0.0)
    k_max = np.repeat(k_max, x.heads_per_kv, axis=1)[:, :, None]
    fits = 1.5 * np.maximum(at.raw, at.a).max(-1, initial=0.0) < ar.limit
    # q or k may be multiplied by the scale, or each by its root, before their product.
    fits &= 1.5 * scale * np.maximum(np.abs(x.q).max(-1), k_max) < ar.limit
    fits &= 1.5 * np.abs(at.s).max(-1, initial=0.0) < ar.limit
    if x.bias is not None:
        fits &= 1.5 * np.abs(x.bias).max(-1, initial=0.0) < ar.limit
    # Rounding the row maximum, as computed, may raise P above 1 by this exponent.
    overshoot = 2 * ar.u * (np.abs(at.m) + delta_max)
    p_max = ar.p.max_finite if ar.p is not None else ar.limit
    fits &= overshoot < math.log(p_max)
    sums = np.where(x.visible, 1.0, 0.0) @ np.abs(at.v)
    fits &= 2.0**ar.lag * np.exp(np.minimum(overshoot, 300.0)) * sums.max(-1) < ar.limit
    if ar.scaled is not None:
        largest = 1.5 * abs(x.exact_scale) * np.maximum(np.abs(x.q).max(-1), k_max)
        fits &= largest < ar.scaled.max_finite
    return np.asarray(fits)
