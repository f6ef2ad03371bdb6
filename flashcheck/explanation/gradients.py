r"""Gradients: which of dq, dk and dv is wrong, and whether a usual mistake gives the same.

A mistake is a formula: delta left out, a scale that is missing, query heads whose sum is not
formed. It is named where dq, dk and dv that it gives are those of the kernel, each within its
bound of them, and the right ones are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashcheck.case import BadReply, Case
from flashcheck.explanation.phrases import join, short
from flashcheck.formats import Array
from flashcheck.verdict import Check

NAMES = ("dq", "dk", "dv")

CLOSE = 1e-2
"""Relative agreement by which words are chosen; it decides no verdict."""

Set = dict[str, Array]


def sentence(case: Case, check: Check) -> str | None:
    """What is wrong with the gradients of a failed check; None where they are right."""
    if not check.symptom.startswith("gradient"):
        return None
    try:
        got = case.differentiate(case.dout).gradients
    except BadReply:
        return None
    bound, formulas = case.gradient_bound(case.dout), _Formulas.of(case)
    allowed: Set = {"dq": bound.dq, "dk": bound.dk, "dv": bound.dv}
    right = formulas.gradients()
    wrong = [name for name in NAMES if not _agree(got[name], right[name], allowed[name])]
    if not wrong:
        return None
    infinite = [name for name in wrong if not np.isfinite(got[name]).all()]
    finite = [name for name in wrong if name not in infinite]
    others = [name for name in NAMES if name not in wrong]
    parts = ((infinite, "not finite"), (finite, "wrong"), (others, "right"))
    said = ", ".join(
        f"{join(names)} {'is' if len(names) == 1 else 'are'} {word}"
        for names, word in parts
        if names
    )
    if infinite:
        return said
    for text, gradients in formulas.mistakes([name for name in wrong if name != "dq"]):
        if all(_agree(got[name], gradients[name], allowed[name]) for name in NAMES):
            return f"{said}: {text}"
    factors = [_factor(got[name], right[name], allowed[name]) for name in wrong]
    if all(f is not None and abs(f - factors[0]) <= CLOSE * abs(f) for f in factors if factors[0]):
        factor = factors[0]
        if factor is not None and short(factor) != "1":
            return f"{said}: {short(factor)} times what it should be{_named(case, factor)}"
    return said


@dataclass(frozen=True, eq=False)
class _Formulas:
    """The formulas of a backward in float64, right and wrong.

    p, dp [B, Hq, Lq, Lk]: weights and dout v^T; slope: that of the softcap.
    """

    case: Case
    p: Array
    dp: Array
    slope: Array

    @staticmethod
    def of(case: Case) -> _Formulas:
        at, back = case.attention(), case.backward(case.dout)
        return _Formulas(case, at.p, case.dout @ at.v.swapaxes(2, 3), back.slope)

    def mistakes(self, of_keys: list[str]) -> Iterator[tuple[str, Set]]:
        """Usual mistakes and what they give, most usual first; of_keys: wrong ones of dk and dv."""
        x, at = self.case.inputs, self.case.attention()
        right, scale = self.gradients(), x.exact_scale
        yield "delta is left out", self.gradients(delta=0.0)
        yield "the sign of delta is turned", self.gradients(delta=-1.0)
        dim, dim_v = x.q.shape[3], x.v.shape[3]
        factors = {"lacks the scale": 1 / (scale or 1.0), "is scaled twice": scale}
        if x.scale is None and dim_v != dim:
            # It may look like no scale, or like two.
            alike = {1: "lacks the scale", dim**2: "is scaled twice"}.get(dim_v)
            text = "is scaled by 1 / sqrt(Dv) instead of 1 / sqrt(D)"
            factors.pop(alike or "", None)
            factors[f"{alike}, or {text}" if alike else text] = 1 / (scale * math.sqrt(dim_v))
        for text, factor in factors.items():
            for names in (("dq",), ("dk",), ("dq", "dk")):
                plural = text.replace("lacks", "lack").replace("is scaled", "are scaled")
                yield f"{join(names)} {text if len(names) == 1 else plural}", {
                    **right, **{name: right[name] * factor for name in names},
                }  # fmt: skip
        with np.errstate(over="ignore", invalid="ignore"):
            lse = np.where(at.seen, at.lse, 0.0)[..., None]
            seen = x.visible
            for text, base in (
                ("lse is to base 2 and taken for a natural one", 1 / math.log(2)),
                ("lse is a natural one and taken for one to base 2", math.log(2)),
            ):
                yield text, self.gradients(np.where(seen, np.exp(at.s - lse * base), 0.0))
            if not seen.all():
                yield "hidden keys have weights", self.gradients(np.exp(at.s - lse))
            unnormalized = np.where(seen, np.exp(at.s - at.m[..., None]), 0.0)
            unnormalized = np.where(at.seen[..., None], unnormalized, 0.0)
            yield "the weights are not normalized", self.gradients(unnormalized)
            yield "dv takes weights that are not normalized", {
                **right, "dv": self.gradients(unnormalized)["dv"],
            }  # fmt: skip
        if x.heads_per_kv > 1 and of_keys:
            for which, head in (("first", 0), ("last", -1)):
                only = self.gradients(head=head)
                those = "is that" if len(of_keys) == 1 else "are those"
                text = f"{join(of_keys)} {those} of the {which} query head of each key head"
                yield text, {**right, **{name: only[name] for name in of_keys}}

    def gradients(self, p: Array | None = None, delta: float = 1.0, head: int | None = None) -> Set:
        """dq, dk and dv by weights p, `delta` times the true one, and one head of a group."""
        x, dout = self.case.inputs, self.case.dout
        p = self.p if p is None else p
        b, hkv, group = x.q.shape[0], x.k.shape[1], x.heads_per_kv
        with np.errstate(over="ignore", invalid="ignore"):
            off = delta * (dout * self.case.attention().out).sum(-1, keepdims=True)
            ds = p * (self.dp - off) * self.slope
            dq = x.exact_scale * ds @ np.repeat(x.k, group, axis=1)

            def columns(left: Array, right: Array) -> Array:
                each = left.swapaxes(2, 3) @ right
                each = each.reshape(b, hkv, group, *each.shape[2:])
                return each.sum(2) if head is None else np.asarray(each[:, :, head])

            return {"dq": dq, "dk": x.exact_scale * columns(ds, x.q), "dv": columns(p, dout)}


def _agree(got: Array, expected: Array, bound: Array) -> bool:
    with np.errstate(invalid="ignore"):
        near = np.abs(got - expected) <= bound * (1 + CLOSE) + 1e-9 * np.abs(expected)
    return bool((near | ~np.isfinite(bound)).all())


def _factor(got: Array, right: Array, bound: Array) -> float | None:
    """The one number by which a gradient is too large, if that explains it."""
    known = np.isfinite(bound) & np.isfinite(got)
    g, r, e = got[known], right[known], bound[known]
    norm = float((r * r).sum())
    if not norm or not math.isfinite(norm):
        return None
    factor = float((g * r).sum()) / norm
    fits = np.abs(g - factor * r) <= (1 + abs(factor)) * e
    told = np.abs(g - r).max(initial=0.0) > 4 * np.abs(g - factor * r).max(initial=0.0)
    return factor if fits.all() and told else None


def _named(case: Case, factor: float) -> str:
    scale = case.inputs.exact_scale
    for value, name in (
        (scale and 1 / scale, "1 / scale"), (scale, "the scale"),
        (math.log(2), "ln(2)"), (1 / math.log(2), "log2(e)"),
    ):  # fmt: skip
        if value not in (0, 1) and abs(factor - value) <= CLOSE * abs(value):
            return f", which is {name}"
    return ""
