"""Backward styles: correct gradients in NumPy, and a simulator at the edge of the contract.

`Kernel` is one backward with the choices that real ones differ in; `fault` breaks it. `Edge` puts
each stage's error where the contract ends (docs/bound.md, sections 13 to 16). Neither shares code
with the bound or with the oracle.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from styles import BLOCKS, Exp, exponential

from flashcheck.bounds import Bound, bound
from flashcheck.bounds.backward import GradientBound, gradient_bound
from flashcheck.fills import Fill
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle import backward
from flashcheck.oracle.backward import Gradients
from flashcheck.oracle.backward.float64 import Backward
from flashcheck.oracle.backward.float64 import backward as float64_backward
from flashcheck.oracle.float64 import Attention, attention
from flashcheck.problem import Problem

HALF: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SMALLEST = {"float64": 2.0**-1074, "float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}
LEAST = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-14, "bfloat16": 2.0**-126}

NAMES = ("dq", "dk", "dv")
DOUTS: dict[str, Fill] = {
    "normal": Fill(noise="normal", spread=1.0),
    "ones": Fill(level=1.0),
    "spike": Fill("spike", level=64.0, at=-1),
    "cancelling": Fill("alternate", level=16.0, noise="normal", spread=1.0),
    "wide": Fill(noise="wide", spread=10.0),
    "zero": Fill(),
}
"""Families of dout."""


# -- problems ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Case:
    """A problem with dout, its exact gradients and the bounds on them."""

    problem: Problem
    family: str
    x: Inputs
    dout: Array
    at: Attention
    back: Backward
    forward: Bound
    limit: GradientBound
    exact: Gradients

    def ratios(self, got: tuple[Array, Array, Array]) -> dict[str, float]:
        """The largest (error - radius) / bound of each gradient, over finite bounds."""
        found = {}
        for name, value in zip(NAMES, got, strict=True):
            exact, limit = getattr(self.exact, name), getattr(self.limit, name)
            known = np.isfinite(limit)
            error = np.abs((value - exact.value) - exact.low)[known]
            error = np.where(np.isnan(error), np.inf, error) - exact.radius[known]
            with np.errstate(divide="ignore", invalid="ignore"):
                ratio = np.where(error <= 0, 0.0, error / limit[known])
            found[name] = float(ratio.max(initial=0.0))
        return found


def case(p: Problem, family: str, contract: Contract = Contract(), **options: Any) -> Case:
    return case_of(p, family, p.inputs().with_(**options), contract)


def case_of(p: Problem, family: str, x: Inputs, contract: Contract = Contract()) -> Case:
    """The problem's inputs, with options, as a case."""
    shape = (*x.q.shape[:3], x.v.shape[3])
    dout = DOUTS[family].evaluate(shape, FORMATS[x.dtype], p.seed + 7)
    at = attention(x)
    back = float64_backward(x, dout, at)
    forward = bound(x, at, contract)
    limit = gradient_bound(x, dout, at, back, forward, contract)
    exact = backward.gradients(x, dout, back, (limit.dq, limit.dk, limit.dv))
    return Case(p, family, x, dout, at, back, forward, limit, exact)


# -- reference kernels ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """One way to write a backward that keeps the contract; `fault` breaks it."""

    # rows and keys of a block; None: everything at once
    block: int | None = 16
    # the order in which blocks add to the gradients: atomics come in any
    order: Literal["keys", "rows", "reversed", "atomics"] = "keys"
    # exp2, with log2(e) folded into the scale and into lse
    base2: bool = False
    # P: rounded before P^T dout, never, or at once, for dS too
    p: Literal["rounded", "wide", "everywhere"] = "rounded"
    round_ds: bool = True
    # sum dout out of the rounded or the unrounded output, or sum P dP of a whole row
    delta: Literal["rounded", "unrounded", "weights"] = "rounded"
    # P is the forward's own w / l instead of exp(s - lse)
    direct: bool = False
    # dP - delta by starting the sum of dP from -delta; or P dP - P delta
    difference: Literal["after", "first", "apart"] = "after"
    # the scale multiplies the gradients, dS before it is rounded, or q and k
    scaling: Literal["gradients", "ds", "inputs"] = "gradients"
    # by how much exp errs: see styles.Style
    exp: Exp = "libm"
    contract: Contract = field(default_factory=Contract)
    fault: str | None = None


STYLES: dict[str, Style] = {
    "blocks": Style(),
    "whole": Style(block=None, delta="unrounded"),
    "rows first, exp2": Style(order="rows", base2=True, scaling="inputs"),
    "atomics": Style(order="atomics", block=3, difference="first"),
    "wide": Style(p="wide", round_ds=False, delta="unrounded", order="reversed"),
    "P rounded at once": Style(p="everywhere", block=8, scaling="ds"),
    "softmax differentiated": Style(direct=True, delta="weights", block=None, difference="apart"),
    "direct, P rounded at once": Style(direct=True, delta="weights", block=None, p="everywhere"),
    "normalized first": Style(direct=True, block=5, order="rows", base2=True),
    "exp2, one by one": Style(block=1, base2=True, order="reversed"),
}


_WIDE: dict[str, Any] = {"qk": "float64", "statistics": "float64", "accumulator": "float64"}


def draw(rng: np.random.Generator, dtype: str) -> tuple[str, Style]:
    """A style with a name: every choice at random, and sometimes a declared contract."""

    def pick(choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    direct = bool(pick((True, False)))
    fields: dict[str, Any] = {
        "direct": direct,
        "delta": pick(("rounded", "unrounded", "weights")[: 3 if direct else 2]),
        "block": pick((None, *BLOCKS)),
        "order": pick(("keys", "rows", "reversed", "atomics")),
        "base2": pick((True, False)),
        "p": pick(("rounded", "wide", "everywhere")),
        "round_ds": pick((True, False)),
        "difference": pick(("after", "first", "apart")),
        "scaling": pick(("gradients", "ds", "inputs")),
        "exp": pick(("libm", "rounded", "polynomial", "high", "low", "random")),
    }
    name = "differentiated softmax" if direct else "exp(score - lse)"
    declared = pick((None,) * 6 + ("exp_form", "exp_error", "p_dtype", "float64"))
    if declared == "exp_form":
        fields |= {"base2": False, "contract": Contract(exp_form="exp")}
    elif declared == "exp_error" and dtype != "float64":
        fields |= {"exp": pick(("libm", "high", "low")), "contract": Contract(exp_error=2.0**-21)}
    elif declared == "p_dtype" and dtype in HALF:
        fields |= {"p": "wide", "contract": Contract(p_dtype="float32")}
    elif declared == "float64" and dtype != "float64":
        fields["contract"] = Contract(**_WIDE)
    else:
        return name, Style(**fields)
    return f"{name}, declared: {declared}", Style(**fields)


Floats = NDArray[Any]


def _half(y: Floats, dtype: str) -> Floats:
    return y.astype(HALF[dtype]).astype(y.dtype) if dtype in HALF else y


def _bfloat16(y: Floats) -> Floats:
    return y.astype(ml_dtypes.bfloat16).astype(y.dtype)


class Kernel:
    """Forward and backward in float32 (float64 for float64), as `style` says."""

    def __init__(self, x: Inputs, style: Style) -> None:
        self.x, self.style = x, style
        wide = x.dtype == "float64" or style.contract.statistics == "float64"
        self.float: Any = np.float64 if wide else np.float32
        u = 8 * float(np.finfo(self.float).eps) / 2
        self.allowed = style.contract.exp_error or (UNIT[x.dtype] / 4 if x.dtype in HALF else u)
        self.coin = np.random.Generator(np.random.PCG64(x.q.size + x.k.size))
        self.hidden = ~x.visible
        self.group = x.heads_per_kv
        self.scale: Any = self.float(x.exact_scale)
        self.q: Any = x.q.astype(self.float)
        self.k: Any = x.k.astype(self.float)
        self.v: Any = x.v.astype(self.float)
        self.log2e: Any = self.float(math.log2(math.e)) if style.base2 else self.float(1)

    def exp(self, y: Floats) -> Floats:
        """In octaves where exp2 is used."""
        how = self.style.exp
        up: Any = self.coin.random(np.shape(y)) < 0.5 if how == "random" else how == "high"
        return exponential(y, self.float, how, self.allowed, octaves=self.style.base2, up=up)

    def head(self, h: int) -> int:
        if self.style.fault == "wrong head map":
            return h % int(self.x.k.shape[1])
        return h // self.group

    def scores(self, h: int) -> Floats:
        """[B, Lq, Lk], in octaves where exp2 is used."""
        q, k = self.q[:, h], self.k[:, h // self.group].swapaxes(1, 2)
        factor = self.scale * self.log2e
        if self.x.softcap:
            s = self.capped(h) * self.log2e
        else:
            s = (q * factor) @ k if self.style.scaling == "inputs" else (q @ k) * factor
        for bias in (self.x.alibi, self.x.bias):
            if bias is not None:
                s = s + bias[:, min(h, bias.shape[1] - 1)].astype(self.float) * self.log2e
        return np.asarray(s)

    def capped(self, h: int) -> Floats:
        cap = self.float(self.x.softcap)
        s = self.q[:, h] @ self.k[:, h // self.group].swapaxes(1, 2)
        return np.asarray(cap * np.tanh(s * (self.scale / cap)))

    def forward(self, h: int) -> tuple[Floats, Floats, Floats]:
        """out [B, Lq, Dv] unrounded, lse [B, Lq, 1] and w / l [B, Lq, Lk] of a query head."""
        s = np.where(self.hidden[:, h], -np.inf, self.scores(h)).astype(self.float)
        m = s.max(-1, keepdims=True, initial=-np.inf)
        m = np.where(np.isinf(m), 0, m).astype(self.float)
        w = self.exp(s - m)
        l = w.sum(-1, keepdims=True)
        if self.x.sinks is not None:
            l = l + self.exp(self.float(self.x.sinks[h]) * self.log2e - m)
        l = np.where(l == 0, self.float(1), l)
        rounded = w if self.style.p == "wide" else _half(w, self.x.dtype)
        out = (rounded @ self.v[:, h // self.group]) / l
        lse = (m / self.log2e + np.log(l)).astype(self.float)
        return out, lse, w / l

    def tasks(self) -> list[tuple[int, slice, slice]]:
        """(query head, rows, keys) in the order in which they add to the gradients."""
        _, heads, _, len_q, len_k, _, _ = self.x.shape
        block = self.style.block or max(len_q, len_k)
        rows, keys = ([slice(i, i + block) for i in range(0, n, block)] for n in (len_q, len_k))
        if self.style.order == "rows":
            found = [(h, i, j) for h in range(heads) for i in rows for j in keys]
        else:
            found = [(h, i, j) for j in keys for h in range(heads) for i in rows]
        if self.style.order == "reversed":
            found.reverse()
        if self.style.order == "atomics":
            random.Random(len_q * len_k).shuffle(found)
        return found

    @np.errstate(all="ignore")
    def gradients(self, dout64: Array) -> tuple[Array, Array, Array]:
        style, dtype, fault = self.style, self.x.dtype, self.style.fault
        dout = dout64.astype(self.float)
        dq, dk, dv = np.zeros_like(self.q), np.zeros_like(self.k), np.zeros_like(self.v)
        parts = [self._head(h, dout[:, h]) for h in range(self.x.q.shape[1])]
        last = self.tasks()[-1][2] if self.tasks() else slice(0)
        for h, i, j in self.tasks():
            p, ds = parts[h]
            p_r = p[:, i, j] if style.p == "wide" else _half(p[:, i, j], dtype)
            ds_r = ds[:, i, j] * self.scale if style.scaling == "ds" else ds[:, i, j]
            ds_r = _half(ds_r, dtype) if style.round_ds else ds_r
            q, k = self.q[:, h, i], self.k[:, h // self.group, j]
            if style.scaling == "inputs":
                q, k = q * self.scale, k * self.scale
            if fault != "last dQ block lost" or j != last:
                dq[:, h, i] += ds_r @ k
            c = self.head(h)
            dk[:, c, j] += ds_r.swapaxes(1, 2) @ q
            dv[:, c, j] += p_r.swapaxes(1, 2) @ dout[:, h, i]
        if style.scaling == "gradients":
            dq, dk = dq * self.scale, dk * self.scale
        if fault == "scale applied twice":
            dq, dk = dq * self.scale, dk * self.scale
        if fault == "dK scale":
            dk = dk * self.float(1.01)
        dq, dk, dv = (FORMATS[dtype].round(g.astype(np.float64)) for g in (dq, dk, dv))
        return dq, dk, dv

    def _head(self, h: int, dout: Floats) -> tuple[Floats, Floats]:
        """P and dS [B, Lq, Lk] of a query head; each element as a block would compute it."""
        style, dtype, fault = self.style, self.x.dtype, self.style.fault
        out, lse, p = self.forward(h)
        hidden = self.hidden[:, h]
        if fault == "LSE rounded":
            lse = _bfloat16(lse)
        if not style.direct:
            p = self.exp(self.scores(h) - lse * self.log2e)
            shown = fault == "dS not masked"
            p = np.where(hidden & ~shown, self.float(0), p).astype(self.float)
        if style.p == "everywhere":
            p = _half(p, dtype)
        v = self.v[:, h // self.group].swapaxes(1, 2)
        if style.delta == "weights":
            delta = (p * (dout @ v)).sum(-1, keepdims=True)
        else:
            kept = _half(out, dtype) if style.delta == "rounded" else out
            delta = (dout * kept).sum(-1, keepdims=True)
        if fault == "delta omitted":
            delta = np.zeros_like(delta)
        if fault == "delta rounded":
            delta = _bfloat16(delta)
        if style.difference == "first":
            difference = -delta
            for t in range(v.shape[1]):
                difference = difference + dout[:, :, t : t + 1] * v[:, t : t + 1]
        else:
            difference = dout @ v - delta
        ds = p * (dout @ v) - p * delta if style.difference == "apart" else p * difference
        if self.x.softcap:
            tanh = self.capped(h) / self.float(self.x.softcap)
            ds = ds if fault == "slope of softcap" else ds * (1 - tanh * tanh)
        if fault == "dS not masked":
            return np.where(hidden, self.float(0), p), ds
        return p, ds


# -- the simulator -------------------------------------------------------------------------


class Edge:
    """One element of a gradient with every stage's error at the edge of the contract.

    The kernel's own lse and out are anywhere within their bounds (test_bounds.py says that
    those hold), its scores computed anew. Signs are those that move the element `up` (or down)
    most, or random. Float64 serves for float32 and narrower.
    """

    def __init__(self, c: Case, up: int, coin: np.random.Generator | None) -> None:
        self.c, self.up, self.coin = c, up, coin
        x = c.x
        half = x.dtype in HALF
        self.u, self.e = UNIT["float32"], UNIT[x.dtype] / 4 if half else 8 * UNIT["float32"]
        self.half = half
        self.scale = x.exact_scale

    def sign(self, direction: Array) -> Array:
        if self.coin is not None:
            return self.coin.choice((-1.0, 0.0, 1.0), size=direction.shape)
        return np.where(direction >= 0, 1.0, -1.0)

    def rounded(self, y: Array, t: Array, dtype: str) -> Array:
        """y off by all that rounding to the nearest may cost."""
        grain = UNIT[dtype] / (1 + UNIT[dtype]) * np.abs(y)
        grain = np.where(
            np.abs(y) < LEAST[dtype], np.minimum(SMALLEST[dtype] / 2, np.abs(y)), grain
        )
        return y + t * grain

    def moved(self, at: Any, t: Array) -> Array:
        """By how much the scores are off, each as far as it may, towards t."""
        off = t * ((1 + self.u) ** (self.c.x.q.shape[3] + 4) - 1) * self.c.at.a[at]
        cap, dot = self.c.x.softcap, self.c.at.dot[at]
        return np.asarray(cap * (np.tanh((dot + off) / cap) - np.tanh(dot / cap)) if cap else off)

    def weights(self, at: Any, t: Array) -> Array:
        """P of the pairs `at`, off towards t."""
        c, u = self.c, self.u
        s = c.at.s[at] + self.moved(at, t)
        lse = c.at.lse[at[:3]] - t * c.forward.lse[at[:3]]
        argument = s - lse + t * u * (np.abs(s) + np.abs(lse) + 5 * np.abs(lse - s))
        p = np.exp(argument) * (1 + t * self.e)
        p = np.where((p < 2.0**-124) & (t < 0), 0.0, p)
        return self.rounded(p, t, c.x.dtype) if self.half else p

    def score_gradients(self, at: Any, p: Array, t: Array, t_delta: Array) -> Array:
        """dS of the pairs `at`: dP off towards t, delta towards t_delta."""
        c, u = self.c, self.u
        dv = c.x.v.shape[3]
        dout = c.dout[at[:3]]
        o = c.at.out[at[:3]] + (np.sign(dout) * t_delta[..., None]) * c.forward.out[at[:3]]
        sums = (1 + u) ** dv - 1
        delta = (dout * o).sum(-1) + t_delta * sums * np.abs(dout * o).sum(-1)
        dp = (dout * c.at.v[at[0], at[1], at[3]]).sum(-1) + t * sums * c.back.f[at]
        g = dp - delta
        ds = p * (g + t * u * np.abs(g))
        ds = ds + t * u * np.abs(ds)
        if c.x.softcap:
            inward = -np.sign(c.at.dot[at]) * np.sign(g) * t
            y = np.tanh(c.at.dot[at] / c.x.softcap) + self.moved(at, inward) / c.x.softcap
            ds = ds * (1 - (y + inward * 2 * u * np.abs(y)) ** 2)
        return self.rounded(ds, t, c.x.dtype) if self.half else ds

    def total(self, terms: Array, factor: float) -> float:
        """factor times the sum of the terms, each in as many roundings as there are terms."""
        t = self.sign(self.up * terms * factor)
        n = terms.size
        y = np.asarray(float((terms + t * ((1 + self.u) ** n - 1) * np.abs(terms)).sum()) * factor)
        t = self.sign(np.asarray(float(self.up)))
        y = y + t * 3 * self.u * np.abs(y)
        return float(self.rounded(y, t, self.c.x.dtype))

    def dq(self, b: int, h: int, i: int, d: int) -> float:
        c = self.c
        j = np.flatnonzero(c.x.visible[b, h, i])
        at = tuple(np.broadcast_arrays(b, h, i, j))
        k = c.x.k[b, h // c.x.heads_per_kv, j, d]
        push = self.up * self.scale * k
        common = np.full(j.shape, -(push * c.at.p[at]).sum())
        # One delta and one lse serve the whole row; what scores do is up to each.
        t, t_delta = self.sign(push), self.sign(common[:1]) * np.ones(j.shape)
        p = self.weights(at, self.sign(c.back.g[at] * push))
        return self.total(self.score_gradients(at, p, t, t_delta) * k, self.scale)

    def pairs(self, b: int, head: int, j: int) -> tuple[Array, ...]:
        """The pairs of a key with all rows of its group that see it."""
        group = self.c.x.heads_per_kv
        found = np.argwhere(self.c.x.visible[b, head * group : (head + 1) * group, :, j])
        return tuple(np.broadcast_arrays(b, head * group + found[:, 0], found[:, 1], j))

    def dk(self, b: int, head: int, j: int, d: int) -> float:
        at = self.pairs(b, head, j)
        q = self.c.x.q[at[:3]][:, d]
        push = self.up * self.scale * q
        t = self.sign(push)
        p = self.weights(at, self.sign(self.c.back.g[at] * push))
        return self.total(self.score_gradients(at, p, t, -t) * q, self.scale)

    def dv(self, b: int, head: int, j: int, e: int) -> float:
        at = self.pairs(b, head, j)
        dout = self.c.dout[at[:3]][:, e]
        return self.total(self.weights(at, self.sign(self.up * dout)) * dout, 1.0)
