"""Runs: which of the two runs that a law compares is wrong, by the oracle.

A law knows only that they differ. The one that it expects to be right may be the wrong one.
"""

from __future__ import annotations

import math
from functools import partial

from flashcheck.case import Case, Runner
from flashcheck.explanation.phrases import short
from flashcheck.inputs import Inputs
from flashcheck.law import Law
from flashcheck.trace import Element, trace
from flashcheck.verdict import Check, Verdict

RANK = {"out": 4, "lse": 3}
"""Axes of an output."""


def which_is_wrong(case: Case, law: Law, check: Check) -> str:
    """One line about a failed `check` of `law` on `case`; "" where nothing is sure."""
    worst = check.worst
    if check.verdict is not Verdict.VIOLATION or not law.runs or worst is None:
        return ""
    if law.backward or worst.output not in ("out", "lse"):
        return ""
    traced = trace(law, partial(_again, case), check)
    found = traced.comparison
    if found is None:
        return ""

    def right(element: Element, got: float) -> bool | None:
        if len(element.index) != RANK[worst.output]:  # made of numbers of the other output
            return None
        x = traced.calls[element.call].inputs
        exact, allowed = _exact(case, x, worst.output, element.index)
        if not math.isfinite(allowed) or math.isnan(exact):
            return None
        return got == exact or abs(got - exact) <= allowed

    first, second = law.runs
    if len(found.got.index) != RANK[worst.output]:
        return ""
    exact, _ = _exact(case, traced.calls[found.got.call].inputs, worst.output, found.got.index)
    mine = right(found.got, worst.got)
    if found.other is None:  # made of several results, and wrong where it differs from a right one
        other = None if mine is None else not mine
    else:
        other = right(found.other, worst.expected - found.number)
    if mine is None or other is None or (mine and other):
        return ""
    told = f"by the oracle it is {short(exact)}"
    if not mine and not other:
        return f"{told}: both results are wrong"
    return f"{told}: the result from {second if mine else first} is wrong"


def _again(case: Case, runner: Runner) -> Case:
    return Case(
        runner, case.target, case.problem, case.config, case.device, case.space, case.captured
    )  # fmt: skip


def _exact(case: Case, x: Inputs, output: str, index: tuple[int, ...]) -> tuple[float, float]:
    """The exact element of a call's result, and how far a right one may be from it."""
    at, bound = case.attention(x), case.exact_bound(x)
    if not case.judged_rows(x)[index[:3]]:
        return math.nan, math.inf
    if output == "lse":
        return float(at.lse[index]), float(bound.lse[index] + at.lse_radius[index])
    return float(at.out[index]), float(bound.out[index] + at.out_radius[index])
