"""Styles: correct attention in NumPy, written in the many ways in which kernels are.

`attention` takes Inputs with any options and a Style, and rounds as a kernel of that dtype does:
statistics and sums in float32 (float64 for float64), P to the input dtype or kept wider, the
output once. Each field of a Style is one way to write the kernel, or one allowance of the contract
(docs/contract.md) spent in full. `mistake` breaks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract

Block = NDArray[Any]
Exp = Literal["libm", "rounded", "polynomial", "high", "low", "mixed", "random"]
Sums = Literal["blas", "sequential", "pairwise", "ascending", "descending"]

FLUSH = 2.0**-124  # an exp below this may be flushed to 0
FAST_LOG = 2.0**-21.5  # how far a fast logarithm is off near 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One of the ways in which a correct kernel computes attention.

    block     keys of a block; None: the whole row
    order     of the keys: as they are, from the last to the first, or shuffled
    skip      blocks that no query sees are left out, rather than hidden
    splits    of the keys, empty ones too, merged by (m, l, acc) or each by its out and lse
    lag       octaves by which the maximum may grow before the sums are rescaled
    sums      of q.k, P and P.V: BLAS's, in the keys' order, a tree, or sorted terms
    scaling   multiplies q.k, q, k, or both by its root
    octaves   scores are scaled by log2(e), which goes into the cap, the slopes and the sink
    argument  of exp: the difference, log2(e) times it, or by an fma; edge: off by all it may
    exp       libm's; rounded once; a polynomial; or off by all that it may, high, low, high for
              keys whose V sums to more than 0, or either way
    flush     an exp below 2^-124 is 0; flush_all: so are subnormal numbers
    rescale_edge  rescale factors are off by all they may
    tanh      libm's, or by exp: 1 - 2 / (e^2y + 1), or (e^y - e^-y) / (e^y + e^-y)
    divide    by the cap, rather than multiply by the scale over the cap
    alibi     a multiple of the distance, or of the key's index where a row sees one side only
    mask_first  ALiBi and the mask are added up first
    sink      the initial maximum; added at the end to sums about the keys' own maximum or
              about one with the sink; or the whole as two parts that are merged by their lse
    wide_p    P is not rounded to the input dtype
    normalize last; P before it is rounded; or by exp(score - lse) in a second pass
    sum_rounded  the normalizer sums P after it is rounded
    reciprocal   1 / l is multiplied
    fast_log  the logarithm is off as a hardware's is
    """

    block: int | None = 8
    order: Literal["forward", "backward", "shuffled"] = "forward"
    skip: bool = False
    splits: int = 1
    merge: Literal["parts", "lse"] = "parts"
    lag: float = 0.0
    sums: Sums = "blas"
    scaling: Literal["after", "q", "k", "root"] = "after"
    octaves: bool = False
    argument: Literal["difference", "product", "fma", "edge"] = "difference"
    exp: Exp = "libm"
    flush: bool = False
    flush_all: bool = False
    rescale_edge: bool = False
    tanh: Literal["libm", "exp", "quotient"] = "libm"
    divide: bool = True
    alibi: Literal["distance", "index"] = "distance"
    mask_first: bool = False
    sink: Literal["initial", "own maximum", "end", "merge"] = "initial"
    wide_p: bool = False
    normalize: Literal["last", "first", "second pass"] = "last"
    sum_rounded: bool = False
    reciprocal: bool = False
    fast_log: bool = False
    contract: Contract = field(default_factory=Contract)
    mistake: str = ""

    @property
    def judges_lse(self) -> bool:
        """Whether the contract promises anything about lse."""
        return not self.sum_rounded or self.contract.normalizer != "before_rounding"


STYLES: dict[str, Style] = {
    "plain": Style(),
    "octaves": Style(octaves=True, sink="own maximum", divide=False),
    "tanh of exp": Style(tanh="exp", sink="end", skip=True, block=4),
    "tanh of exp in octaves": Style(tanh="exp", octaves=True, sink="end", alibi="index"),
    "tanh by a quotient": Style(tanh="quotient", alibi="index", sink="merge"),
    "mask before ALiBi": Style(mask_first=True, sink="own maximum", skip=True, block=16),
    "blocks of one": Style(octaves=True, tanh="exp", mask_first=True, skip=True, block=1),
}
"""Ways to compute the options: softcap, ALiBi, sinks, windows."""

_COMMON = {
    "reciprocal": (False, True),
    "fast_log": (False, True),
    "order": ("forward", "backward", "shuffled"),
}
_SPLITS = (1, 2, 3, 4, 7, 16, 200)
_LAGS = (0.0, 0.5, 1.0, 3.0, 8.0, 12.0, 15.0)
_SUMS: tuple[Sums, ...] = ("blas", "sequential", "pairwise", "ascending", "descending")
_EXPS: tuple[Exp, ...] = ("libm", "rounded", "polynomial", "high", "low", "mixed", "random")
_SCALINGS = ("after", "q", "k", "root")
BLOCKS = (1, 4, 8, 16, 32, 64, 128)

KINDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "online": {"exp": _EXPS, "sums": _SUMS, "scaling": _SCALINGS},
    "exp2, folded": {"octaves": (True,), "exp": _EXPS, "lag": _LAGS, "scaling": _SCALINGS},
    "exp2 of a product": {"argument": ("product",), "exp": _EXPS, "sums": _SUMS},
    "exp2 by an fma": {"argument": ("fma",), "exp": _EXPS, "lag": _LAGS},
    "polynomial": {"exp": ("polynomial",), "octaves": (True, False), "lag": _LAGS},
    "lazy rescale": {"lag": _LAGS[1:], "sums": _SUMS, "octaves": (True, False), "exp": _EXPS},
    "splits, by m, l and acc": {"splits": _SPLITS, "octaves": (True, False), "lag": _LAGS},
    "splits, by lse": {"splits": _SPLITS, "merge": ("lse",), "octaves": (True, False)},
    "normalized first": {"normalize": ("first",), "exp": _EXPS, "sums": _SUMS},
    "second pass": {"normalize": ("second pass",), "octaves": (True, False), "exp": _EXPS},
    "wide P": {"wide_p": (True,), "lag": _LAGS, "sums": _SUMS, "exp": _EXPS},
    "normalizer of rounded P": {"sum_rounded": (True,), "octaves": (True, False), "exp": _EXPS},
    "argument at its edge": {"argument": ("edge",), "block": (None,), "exp": ("rounded",),
                             "alibi": ("distance",), "sink": ("initial",)},
    "rescales at their edge": {"rescale_edge": (True,), "exp": ("rounded", "high", "low"),
                               "sink": ("initial",)},
    "exp flushed": {"flush": (True,), "octaves": (True, False), "lag": _LAGS},
    "whole row": {"block": (None,), "sums": _SUMS, "exp": _EXPS, "octaves": (True, False)},
}  # fmt: skip
"""Kinds of kernels that keep the default contract, and what else is free in each."""

_OPTIONS = {
    "tanh": ("libm", "exp", "quotient"), "divide": (True, False),
    "alibi": ("distance", "index"), "mask_first": (False, True),
    "sink": ("initial", "own maximum", "end", "merge"), "skip": (False, True),
}  # fmt: skip

DECLARED: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]] = {
    "kv_block": ((), {"splits": (1, 2, 3), "sums": _SUMS, "octaves": (True, False),
                      "exp": _EXPS, "lag": _LAGS}, {}),
    "exp_form exp": ((), {"exp": _EXPS, "sums": _SUMS, "lag": _LAGS, "splits": (1, 1, 3)},
                     {"exp_form": "exp"}),
    "kv_block, exp_form, exp_error": (("float32", "float16", "bfloat16"),
                                      {"block": (64,), "splits": (1, 1, 3), "sums": _SUMS,
                                       "exp": ("libm", "rounded", "high", "low", "random")},
                                      {"kv_block": 64, "exp_form": "exp",
                                       "exp_error": 2.0**-21}),
    "rescale_threshold": (("float64", "float32", "bfloat16"),
                          {"lag": (20.0, 40.0), "octaves": (True, False), "exp": _EXPS},
                          {"rescale_threshold": 40.0}),
    "exp_form exp2": ((), {"octaves": (True,), "exp": _EXPS}, {"exp_form": "exp2"}),
    "exp_form exp2_fma": ((), {"argument": ("fma",), "exp": _EXPS}, {"exp_form": "exp2_fma"}),
    "exp_error of libm": (("float32", "float16", "bfloat16"),
                          {"exp": ("libm", "rounded", "high", "low", "mixed")},
                          {"exp_error": 2.0**-21}),
    "exp_error of a cubic": (("float32",), {"exp": ("polynomial", "high", "low", "mixed"),
                                            "octaves": (True, False)}, {"exp_error": 2.0**-13}),
    "p_dtype float32": (("float16", "bfloat16"), {"wide_p": (True,), "exp": _EXPS},
                        {"p_dtype": "float32"}),
    "p_dtype bfloat16": (("float32", "float16"), {"sums": _SUMS, "lag": _LAGS},
                         {"p_dtype": "bfloat16"}),
    "normalizer after": (("float16", "bfloat16"), {"sum_rounded": (True,), "lag": _LAGS,
                                                   "octaves": (True, False)},
                         {"normalizer": "after_rounding"}),
    "normalizer either": (("float16", "bfloat16"), {"sum_rounded": (True, False)},
                          {"normalizer": "either"}),
    "tf32": (("float32",), {"octaves": (True, False), "lag": _LAGS}, {"qk": "tf32"}),
    "tf32x3": (("float32",), {"octaves": (True, False), "sums": _SUMS}, {"qk": "tf32x3"}),
    "all in float64": (("float32", "float16", "bfloat16"),
                       {"sums": _SUMS, "octaves": (True, False), "exp": _EXPS},
                       {"qk": "float64", "statistics": "float64", "accumulator": "float64"}),
    "scale_in_input_dtype": (("float32", "float16", "bfloat16"),
                             {"scaling": ("q", "k"), "octaves": (True, False)},
                             {"scale_in_input_dtype": True}),
    "flushes_subnormals": (("float32", "float16", "bfloat16"),
                           {"flush_all": (True,), "octaves": (True, False), "lag": _LAGS},
                           {"flushes_subnormals": True}),
}  # fmt: skip
"""Kernels that declare more, or less, than the default: dtypes (all), what is free, contract."""


def draw(rng: np.random.Generator, dtype: str) -> tuple[str, Style]:
    """A style with a name: a kind, or a declared contract, and what is free at random."""

    def pick(choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    half = FORMATS[dtype].precision < 24
    fields: dict[str, Any] = {n: pick(c) for n, c in {**_OPTIONS, **_COMMON}.items()}
    fields["block"] = pick(BLOCKS)
    declared = rng.random() < 0.3
    if declared:
        name = pick([n for n, (dtypes, *_) in DECLARED.items() if not dtypes or dtype in dtypes])
        _, free, contract = DECLARED[name]
        if name == "kv_block":
            contract = {"kv_block": fields["block"]}
        fields["contract"] = Contract(**contract)
        name = f"declared: {name}"
    else:
        name = pick([n for n in KINDS if half or n not in ("wide P", "normalizer of rounded P")])
        free = KINDS[name]
    fields |= {n: pick(c) for n, c in free.items()}
    return name, Style(**fields)


# -- elementary functions ------------------------------------------------------------------


@cache
def polynomial(degree: int) -> tuple[tuple[float, ...], float]:
    """Coefficients of 2^f on [-1/2, 1/2], lowest first, and their relative error (Remez)."""
    grid = np.linspace(-0.5, 0.5, 4001)
    n = degree + 2
    at = -np.cos(np.arange(n) * math.pi / (n - 1)) / 2
    for _ in range(8):
        sign = (-1.0) ** np.arange(n)
        rows = np.column_stack([*(at**k * 2.0**-at for k in range(degree + 1)), sign])
        *c, _ = np.linalg.solve(rows, np.ones(n))
        error = np.polynomial.polynomial.polyval(grid, c) * 2.0**-grid - 1
        # The extremes of each stretch of one sign.
        cuts = [0, *(np.flatnonzero(np.diff(np.sign(error))) + 1), len(grid)]
        peaks = [a + int(np.abs(error[a:b]).argmax()) for a, b in pairwise(cuts)]
        if len(peaks) != n:
            break
        at = grid[peaks]
    return tuple(map(float, c)), float(np.abs(error).max())


def degree(allowed: float, u: float) -> int:
    """Of a polynomial that keeps within `allowed`, with 4 u for its evaluation."""
    return next(d for d in range(2, 16) if polynomial(d)[1] + 4 * u <= allowed)


def _polynomial(x: Block, allowed: float) -> Block:
    """2^x by Cody and Waite: a whole power of two, and a polynomial by Horner's rule."""
    one = x.dtype.type
    whole = np.rint(np.maximum(x, one(-1100)))
    part = np.maximum(x, one(-1100)) - whole
    c, _ = polynomial(degree(allowed, float(np.finfo(one).eps) / 2))
    y = np.full_like(x, c[-1])
    for k in reversed(c[:-1]):
        y = y * part + one(k)
    y = np.where(np.isneginf(x), one(0), np.ldexp(y, whole.astype(np.int32)))
    return np.asarray(y, one)


def exponential(
    x: Array | Block, one: Any, how: Exp, allowed: float, *, octaves: bool, up: Block | bool = True
) -> Block:
    """2^x or e^x in the format `one`, off by no more than `allowed`; `up`: where it errs upwards.

    x may be finer than that format, as an fma's result is not.
    """
    u = float(np.finfo(one).eps) / 2
    if how == "polynomial":
        narrow = np.asarray(x, one)
        return _polynomial(narrow if octaves else narrow * one(math.log2(math.e)), allowed)
    if how == "libm":
        narrow = np.asarray(x, one)
        return np.asarray(np.exp2(narrow) if octaves else np.exp(narrow))
    wide = np.exp2(np.asarray(x, np.float64)) if octaves else np.exp(np.asarray(x, np.float64))
    if how != "rounded":
        # Less what rounding the result costs, float64's exp itself, and their product.
        off = allowed - (1.01 if one is np.float32 else 4) * u
        wide = wide * np.where(up, 1 + off, 1 - off)
    return np.asarray(wide).astype(one)


def _tanh(y: Block, how: str) -> Block:
    one = y.dtype.type(1)
    if how == "exp":
        return np.asarray(one - 2 / (np.exp(2 * y) + one))
    if how == "quotient":
        y = np.clip(y, -40, 40)  # where tanh is 1; e^y would overflow
        return np.asarray((np.exp(y) - np.exp(-y)) / (np.exp(y) + np.exp(-y)))
    return np.asarray(np.tanh(y))


def total(terms: Block, sums: Sums) -> Block:
    """The sum over the last axis."""
    if sums == "blas" or terms.shape[-1] == 0:
        return np.asarray(terms.sum(axis=-1))
    if sums == "pairwise":
        while terms.shape[-1] > 1:
            odd = terms[..., terms.shape[-1] // 2 * 2 :]
            terms = np.concatenate([terms[..., 0:-1:2] + terms[..., 1::2], odd], axis=-1)
        return np.asarray(terms[..., 0])
    if sums != "sequential":
        terms = np.sort(terms, axis=-1)
    if sums == "descending":
        terms = terms[..., ::-1]
    # cumsum adds strictly one after the other.
    return np.asarray(np.cumsum(terms, axis=-1, dtype=terms.dtype)[..., -1])


def dot(a: Block, b: Block, sums: Sums) -> Block:
    """[..., M, K] times [..., K, N], each element a sum of its terms in that order."""
    if sums == "blas" or a.shape[-1] == 0:
        return np.asarray(a @ b)
    return total(a[..., :, None, :] * b.swapaxes(-1, -2)[..., None, :, :], sums)


def _truncated(x: Block) -> Block:
    """float32 to the 11 bits of TF32."""
    return np.asarray((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


# -- scores --------------------------------------------------------------------------------


def _products(q: Block, k: Block, style: Style) -> Block:
    """Sums of q.k, by the contract's format."""
    k = k.swapaxes(2, 3)
    if style.contract.qk not in ("tf32", "tf32x3"):
        return dot(q, k, style.sums)
    q_high, k_high = _truncated(q), _truncated(np.ascontiguousarray(k))
    s = dot(q_high, k_high, style.sums)
    if style.contract.qk == "tf32x3":
        s = s + dot(_truncated(q - q_high), k_high, style.sums)
        s = s + dot(q_high, _truncated(k - k_high), style.sums)
    return s


def _scores(x: Inputs, k: Block, style: Style, one: Any) -> tuple[Block, Block, Any]:
    """Scores [B, Hq, Lq, Lk], in octaves where the style says so; what they are above; and what
    is still to be multiplied for octaves."""
    q = x.q.astype(one)
    len_q, len_k = q.shape[2], k.shape[2]
    unit = one(math.log2(math.e)) if style.octaves else one(1)
    scale = one(x.exact_scale)
    shift = np.zeros((1, 1, len_q, 1), one)
    left = one(1) if x.softcap else unit  # octaves come with the cap
    plain = not x.softcap and x.alibi_slopes is None and x.bias is None
    factor = one(math.log2(math.e)) if style.argument == "fma" else one(1)
    if style.contract.scale_in_input_dtype and style.scaling in ("q", "k"):
        fmt = FORMATS[x.dtype]
        if style.scaling == "q":
            q = fmt.round(q * scale).astype(one)
        else:
            k = fmt.round(k * scale).astype(one)
        s = _products(q, k, style) * left
    elif style.scaling == "q":
        s = _products(q * (scale * left), k, style)
    elif style.scaling == "k":
        s = _products(q, k * (scale * left), style)
    elif style.scaling == "root":
        root = np.sqrt(np.abs(scale))
        s = _products(q * np.copysign(root, scale), k * root, style) * left
    elif style.argument == "fma" and plain:
        s, factor = _products(q, k, style), scale * factor
    elif x.softcap and (not style.divide or style.mistake == "softcap before scale"):
        s = _products(q, k, style)  # not scaled yet
    else:
        s = _products(q, k, style) * (scale * left)
    if x.softcap:
        cap = one(x.softcap)
        if style.mistake == "softcap before scale":
            s = cap * np.tanh(s / cap) * scale * unit
        elif style.divide or style.scaling != "after":
            s = (unit * cap) * _tanh(s / cap, style.tanh)
        else:
            s = (unit * cap) * _tanh(s * (scale / cap), style.tanh)
    mask = None if x.bias is None else x.bias.astype(one) * unit
    if x.alibi_slopes is not None:
        slopes = (x.alibi_slopes.astype(one) * unit)[:, None, None]
        place = np.arange(len_q)[:, None] + (len_k - len_q)
        if style.mistake == "ALiBi from the top left":
            place = np.arange(len_q)[:, None]
        distance = np.abs(place - np.arange(len_k))
        side = _side(x) if style.alibi == "index" else 0
        if side:
            added = side * slopes * np.arange(len_k).astype(one)
            shift = (side * slopes * place.astype(one))[None]
        else:
            added = -slopes * distance.astype(one)
        added = np.asarray(-added if style.mistake == "ALiBi's sign" else added)[None]
        s = s + (added + mask) if style.mask_first and mask is not None else s + added
    if mask is not None and not (style.mask_first and x.alibi_slopes is not None):
        s = s + mask
    return np.asarray(s, one), shift, factor


def _side(x: Inputs) -> int:
    """1 where every row sees keys up to its own place alone, -1 from there on, else 0."""
    aligned = x.bottom_right or x.q.shape[2] == x.k.shape[2]
    if x.window[1] == 0 or (x.is_causal and aligned):
        return 1
    return -1 if x.window[0] == 0 else 0


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
    if mistake == "causal one long" and x.is_causal:
        i, j = np.arange(x.q.shape[2])[:, None], np.arange(x.k.shape[2])
        shift = x.shift if x.bottom_right else 0
        return x.with_(is_causal=False).visible & (j <= i + shift + 1)
    return x.visible


# -- the kernel ----------------------------------------------------------------------------


@dataclass
class _Kernel:
    """What blocks of one call share: formats, exp, rounding of P."""

    x: Inputs
    style: Style

    def __post_init__(self) -> None:
        fmt = FORMATS[self.x.dtype]
        contract = self.style.contract
        wide = self.x.dtype == "float64" or contract.statistics == "float64"
        self.one: Any = np.float64 if wide else np.float32
        self.u = float(np.finfo(self.one).eps) / 2
        half = fmt.precision < 24
        self.allowed = contract.exp_error or (fmt.unit_roundoff / 4 if half else 8 * self.u)
        name = contract.p_dtype or (self.x.dtype if half else None)
        self.p = None if name is None or self.style.wide_p else FORMATS[name]
        self.base2 = self.style.octaves or self.style.argument == "fma"
        self.coin = np.random.Generator(np.random.PCG64(self.x.q.size + self.x.k.size))

    def flushed(self, y: Block) -> Block:
        if not self.style.flush_all:
            return y
        return np.where(np.abs(y) < 2.0**-126, self.one(0), y)

    def exp(self, x: Block) -> Block:
        """Of a difference of maxima: rounded once, in units of the maximum."""
        y = exponential(x, self.one, "rounded", 0, octaves=self.base2)
        return np.where(y < FLUSH, self.one(0), y) if self.style.flush else self.flushed(y)

    def weights(self, s: Block, seen: Block, reference: Block, factor: Any, v: Block) -> Block:
        """exp(scores - reference) [B, Hq, Lq, keys], 0 where hidden, not yet rounded to P."""
        style, one = self.style, self.one
        octaves = self.base2
        if style.argument == "fma":  # s * factor - reference, rounded once
            arg: Any = (s.astype(np.float64) * float(factor) - reference).astype(one)
        elif style.argument == "product":
            arg, octaves = (s - reference) * one(math.log2(math.e)), True
        elif style.argument == "edge":  # float64 spends two of the five by itself
            s64, m64 = s.astype(np.float64), reference.astype(np.float64)
            five = 5 if one is np.float32 else 3
            sign = np.where(np.arange(s.shape[-1]) % 2, -self.u, self.u)
            arg = s64 - m64 + sign * (np.abs(s64) + np.abs(m64) + five * np.abs(m64 - s64))
        else:
            arg = s - reference
        up: Any = style.exp == "high"
        if style.exp == "mixed":
            up = v.sum(axis=-1)[..., None, :] > 0
        elif style.exp == "random":
            up = self.coin.random(s.shape) < 0.5
        arg = np.where(seen, arg, -np.inf)
        y = exponential(arg, one, style.exp, self.allowed, octaves=octaves, up=up)
        return np.where(y < FLUSH, one(0), y) if style.flush else self.flushed(y)

    def rounded(self, p: Block) -> Block:
        return p if self.p is None else self.p.round(p).astype(self.one)

    def log(self, l: Block) -> Block:
        logs = np.log2(l) if self.base2 else np.log(l)
        if self.style.fast_log and self.one is np.float32:
            off = np.maximum(FAST_LOG, 4 * self.u * np.abs(np.log(l)))
            off = off * (math.log2(math.e) if self.base2 else 1)
            logs = logs.astype(np.float64) + np.where(np.isfinite(logs), off, 0.0)
        return np.asarray(logs, self.one)

    def online(
        self, s: Block, seen: Block, v: Block, factor: Any, keys: slice, m: Block, l: Block
    ) -> tuple[Block, Block, Block]:
        """m, l [B, Hq, Lq, 1] and acc [B, Hq, Lq, Dv] of a range of keys."""
        style, one = self.style, self.one
        acc = np.zeros((*m.shape[:3], v.shape[3]), one)
        starts = _starts(keys, style)
        octave = 1.0 if self.base2 else math.log(2)
        for part in starts:
            if style.skip and not seen[..., part].any():
                continue
            block = np.where(seen[..., part], s[..., part] * factor, one(-np.inf))
            m_new = np.maximum(m, block.max(-1, keepdims=True))
            if style.lag:
                m_new = np.where(m_new - m <= one(style.lag * octave), m, m_new)
            at = np.where(np.isneginf(m_new), one(0), m_new)
            alpha = self.exp(m - at)
            if style.rescale_edge:  # less alpha's own roundings
                off = ((8 + s.shape[3]) / len(starts) - (1 if one is np.float32 else 4)) * self.u
                alpha = np.asarray(np.where(alpha == 1, 1, alpha * (1 + max(off, 0.0))), one)
            p = self.weights(s[..., part], seen[..., part], at, factor, v[:, :, part])
            rounded = self.rounded(p)
            summed = rounded if style.sum_rounded else p
            l = self.flushed(l * alpha + total(summed, style.sums)[..., None])
            if style.mistake == "acc not rescaled":
                alpha = np.ones_like(alpha)
            acc = self.flushed(acc * alpha + dot(rounded, v[:, :, part], style.sums))
            m = m_new
        return m, l, acc

    def lse(self, m: Block, l: Block) -> Block:
        empty = l == 0
        return np.where(empty, self.one(-np.inf), m + self.log(np.where(empty, self.one(1), l)))


def _starts(keys: slice, style: Style) -> list[slice]:
    step = style.block or max(keys.stop - keys.start, 1)
    found = [slice(i, min(i + step, keys.stop)) for i in range(keys.start, keys.stop, step)]
    if style.mistake == "last block lost":
        found = found[:-1]
    return found[::-1] if style.order == "backward" else found


def _by_parts(kernel: _Kernel, parts: list[tuple[Block, Block, Block]]) -> tuple[Block, ...]:
    """Splits merged by their m, l and acc."""
    if len(parts) == 1:
        return parts[0]
    m = np.max([m_i for m_i, _, _ in parts], axis=0)
    at = np.where(np.isneginf(m), kernel.one(0), m)
    w = [kernel.exp(m_i - at) for m_i, _, _ in parts]
    l = sum(w_i * l_i for w_i, (_, l_i, _) in zip(w, parts, strict=True))
    acc = sum(w_i * acc_i for w_i, (_, _, acc_i) in zip(w, parts, strict=True))
    return m, np.asarray(l), np.asarray(acc)


def _by_lse(kernel: _Kernel, parts: list[tuple[Block, Block, Block]]) -> tuple[Block, ...]:
    """Splits merged by their out and lse: the lse of each is the m of the merge."""
    one = kernel.one
    outs = [acc / np.where(l == 0, one(1), l) for _, l, acc in parts]
    logs = [kernel.lse(m, l) for m, l, _ in parts]
    ones = [np.where(np.isneginf(lse), one(0), one(1)) for lse in logs]
    return _by_parts(kernel, list(zip(logs, ones, outs, strict=True)))


@np.errstate(all="ignore")
def attention(x: Inputs, style: Style) -> tuple[Array, Array]:
    """Online softmax over blocks of keys: out [B, Hq, Lq, Dv] and lse [B, Hq, Lq]."""
    kernel = _Kernel(x, style)
    one = kernel.one
    heads = np.arange(x.q.shape[1])
    heads = heads % x.k.shape[1] if style.mistake == "wrong head map" else heads // x.heads_per_kv
    k, v = x.k[:, heads].astype(one), x.v[:, heads].astype(one)
    s, shift, factor = _scores(x, k, style, one)
    s = kernel.flushed(s)
    seen = _visible(x, style.mistake)
    unit = one(math.log2(math.e)) if kernel.base2 else one(1)
    if style.argument == "fma":
        shift = shift * unit

    none = np.full((*s.shape[:3], 1), -np.inf, one)
    z = None
    if x.sinks is not None and style.mistake != "sink forgotten":
        z = np.broadcast_to(x.sinks[:, None, None], none.shape).astype(one) * unit
        z = np.asarray(z + shift, one)
    n = k.shape[2]
    if style.order == "shuffled":
        keys_at = kernel.coin.permutation(n)
        s, seen, v = s[..., keys_at], seen[..., keys_at], v[:, :, keys_at]
    wide = max(1, -(-n // style.splits))
    parts = []
    for i in range(style.splits):  # the last ones may be empty
        keys = slice(min(i * wide, n), min((i + 1) * wide, n))
        if i > 0 and keys.start == keys.stop and i < style.splits - 1:
            continue  # one empty split is as good as a hundred
        m, l = none, np.zeros_like(none)
        if i == 0 and z is not None and style.sink == "initial":
            m, l = z.copy(), np.ones_like(none)
        parts.append(kernel.online(s, seen, v, factor, keys, m, l))
    m, l, acc = (_by_lse if style.merge == "lse" else _by_parts)(kernel, parts)

    without = l
    if z is not None and style.mistake == "sink without the maximum":
        l = l + kernel.exp(z)
    elif z is not None and style.sink == "own maximum":
        # A sink whose exponential would overflow has to be in the maximum.
        at = np.where(np.isneginf(m), z, m)
        at = np.where(z - at > math.log(np.finfo(one).max) * unit, z, at)
        down = kernel.exp(m - at)
        l, acc, m = l * down + kernel.exp(z - at), acc * down, at
    elif z is not None and style.sink == "end":
        top = np.maximum(m, z)
        down = kernel.exp(m - top)
        l, acc, m = l * down + kernel.exp(z - top), acc * down, top
    elif z is not None and style.sink == "merge":
        own = kernel.lse(m, l)
        top = np.maximum(own, z)
        acc = acc / np.where(l == 0, one(1), l) * kernel.exp(own - top)
        l, m = kernel.exp(own - top) + kernel.exp(z - top), top
    if z is not None and style.mistake == "sink twice":
        l = l + kernel.exp(z - m)
    safe = np.where(l == 0, one(1), l)
    if style.normalize != "last":
        acc = _second_pass(kernel, s, seen, v, factor, m, l)
    elif style.reciprocal:
        acc = acc * (one(1) / safe)
    else:
        acc = acc / safe
    lse = kernel.lse(m, without if style.mistake == "sink left out of lse" else l) - shift
    lse = (lse * one(math.log(2)) if kernel.base2 else lse)[..., 0]
    out = FORMATS[x.dtype].round(kernel.flushed(acc).astype(np.float64))
    if x.dtype != "float64":  # it is stored so, whatever the statistics' format
        lse = lse.astype(np.float32)
    return out, lse.astype(np.float64)


def _second_pass(
    kernel: _Kernel, s: Block, seen: Block, v: Block, factor: Any, m: Block, l: Block
) -> Block:
    """The output from weights that are normalized before they are rounded and multiplied."""
    one, style = kernel.one, kernel.style
    acc = np.zeros((*m.shape[:3], v.shape[3]), one)
    at, by = np.where(np.isneginf(m), one(0), m), np.where(l == 0, one(1), l)
    if style.normalize == "second pass":
        lse = kernel.lse(m, l)
        at, by = np.where(np.isneginf(lse), one(0), lse), np.ones_like(by)
    for part in _starts(slice(0, s.shape[3]), style):
        p = kernel.weights(s[..., part], seen[..., part], at, factor, v[:, :, part]) / by
        acc = acc + dot(kernel.rounded(p), v[:, :, part], style.sums)
    return acc


MISTAKES: dict[str, Any] = {
    "softcap before scale": lambda x: x.softcap > 0,
    "ALiBi's sign": lambda x: x.alibi_slopes is not None,
    "ALiBi from the top left": lambda x: x.alibi_slopes is not None,
    "window one short": lambda x: x.window[0] > 0,
    "window one long": lambda x: x.window[1] >= 0,
    "window from the top left": lambda x: x.window != (-1, -1),
    "sink twice": lambda x: x.sinks is not None,
    "sink without the maximum": lambda x: x.sinks is not None,
    "sink left out of lse": lambda x: x.sinks is not None,
    "sink forgotten": lambda x: x.sinks is not None,
    "acc not rescaled": lambda x: x.k.shape[2] > 8,
    "last block lost": lambda x: x.k.shape[2] > 0,
    "causal one long": lambda x: x.is_causal,
    "wrong head map": lambda x: 1 < x.k.shape[1] < x.q.shape[1],
}
"""What a kernel may do wrong, and the problems on which that is possible at all."""


def mistaken(mistake: str) -> Style:
    return replace(STYLES["plain"], sink="own maximum", mistake=mistake)
