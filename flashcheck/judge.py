"""Judge: compares a kernel's results with what they should be and makes a Check of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flashcheck.formats import Array, Bools
from flashcheck.verdict import Check, Verdict, Worst


def called(output: str) -> str:
    """How a wrong output is called: one mistake spoils several gradients."""
    return output if output in ("out", "lse") else "gradient"


class Judge:
    """Collects comparisons of one property on one problem.

    The check holds when every ratio = (error - radius) / bound is at most 1. Elements whose
    bound is infinite are not judged; the check is vacuous when more than half of the elements
    that `vacuous` counts over are. `runs` names what gives got and expected, as a law has it.
    """

    def __init__(self, name: str, runs: tuple[str, str] | tuple[()] = ()) -> None:
        self.name = name
        self.runs = runs
        self.stats: dict[str, Any] = {}
        self._ratio = 0.0
        self._worst: Worst | None = None
        self._symptom = ""
        self._message = ""
        self._counts = dict.fromkeys(("elements", "wrong", "nan", "inf", "vacuous"), 0)
        self._verdict = Verdict.PASS

    def within(
        self,
        output: str,
        got: Array,
        expected: Array,
        bound: Array,
        *,
        radius: Array | float = 0.0,
        low: Array | float = 0.0,
        judged: Bools | None = None,
        vacuous: Bools | None = None,
    ) -> Array:
        """Judge got against expected (+ low) within bound, elementwise; returns the ratios."""
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            error = np.abs((got - expected) - low)
            same = (got == expected) & (np.asarray(low) == 0)
            error = np.where(same, 0.0, error)
            excess = np.maximum(error - radius, 0.0)
            ratio = np.where(excess == 0, 0.0, excess / bound)
            ratio = np.where(np.isnan(got) | np.isnan(ratio), np.inf, ratio)
        watched = np.isfinite(bound) & (True if judged is None else judged)
        ratio = np.where(watched, ratio, 0.0)
        wrong = ratio > 1
        self._count(got, watched, wrong, vacuous)
        if ratio.size:
            at = np.unravel_index(int(ratio.argmax()), ratio.shape)
            top = float(ratio[at])
            self.stats[f"ratio_{output}"] = max(top, self.stats.get(f"ratio_{output}", 0.0))
            if self._worst is None or top > self._ratio:
                self._ratio = max(self._ratio, top)
                self._worst = Worst(
                    output, tuple(int(i) for i in at), float(got[at]), float(expected[at]),
                    float(error[at]), float(np.broadcast_to(bound, got.shape)[at]),
                    float(np.broadcast_to(radius, got.shape)[at]),
                )  # fmt: skip
        if wrong.any() and not self._symptom:
            finite = np.isfinite(got[wrong]) & np.isfinite(expected[wrong])
            kind = "value" if finite.all() else "not finite"
            self._fail(f"{called(output)} {kind}", self._sentence(output, wrong, watched))
        return ratio

    def finite(self, output: str, got: Array, judged: Bools) -> None:
        """Judge that every judged element is finite."""
        wrong = judged & ~np.isfinite(got)
        self._count(got, judged, wrong, None)
        if wrong.any():
            self._first_is_worst(output, got, wrong)
            self._fail(f"{output} not finite", self._sentence(output, wrong, judged))

    def nan(self, output: str, got: Array, judged: Bools) -> None:
        """Judge that every judged element is NaN: those of rows that see no key."""
        judged = np.broadcast_to(judged, got.shape)
        wrong = judged & ~np.isnan(got)
        self._count(got, judged, wrong, None)
        if wrong.any():
            w = self._first_is_worst(output, got, wrong)
            share = f"{int(wrong.sum())} of {int(judged.sum())} elements of {output}"
            self._fail("masked rows", f"{share}, {list(w.index)} is {w.got:.9g}")

    def unchanged(
        self, output: str, first: Array, second: Array, bound: Array | None, symptom: str, what: str
    ) -> None:
        """Judge that a result is what it was: bit for bit, or within `bound` where it is given.

        A kernel that is declared not to be deterministic keeps its bits from no call to the
        next; its results still lie within the sum of their bounds.
        """
        if bound is None:
            self.identical(output, first, second, symptom, what)
        else:
            self.within(output, second, first, bound)

    def identical(self, output: str, first: Array, second: Array, symptom: str, what: str) -> None:
        """Judge that two results have the same bits; `what` says what was done in between."""
        differ = first.view(np.uint64) != second.view(np.uint64)
        # Two NaNs may differ in their payload and mean the same.
        differ &= ~(np.isnan(first) & np.isnan(second))
        self._count(second, np.ones(first.shape, bool), differ, None)
        if differ.any():
            at = tuple(int(i) for i in np.argwhere(differ)[0])
            self._ratio = math.inf
            self._worst = Worst(
                output, at, float(second[at]), float(first[at]),
                float(abs(second[at] - first[at])), 0.0, 0.0,
            )  # fmt: skip
            self._fail(
                symptom,
                f"{what}: {output}{list(at)} was {first[at]:.9g} and became {second[at]:.9g} "
                f"({int(differ.sum())} of {differ.size} elements changed)",
            )

    def fail(self, symptom: str, message: str, verdict: Verdict = Verdict.VIOLATION) -> None:
        """Record a failure that is no comparison of numbers."""
        self._ratio = math.inf
        self._fail(symptom, message, verdict)

    def check(self) -> Check:
        verdict = self._verdict
        counts = self._counts
        if verdict is Verdict.PASS and counts["vacuous"] * 2 > counts["elements"]:
            verdict = Verdict.VACUOUS
        return Check(
            self.name, verdict, self._ratio, self._symptom, self._message, self._worst,
            dict(counts), dict(self.stats),
        )  # fmt: skip

    def nondeterministic(self) -> None:
        """Call what was found a difference between two equal calls."""
        if self._verdict is Verdict.VIOLATION:
            self._verdict = Verdict.NONDETERMINISTIC

    def _fail(self, symptom: str, message: str, verdict: Verdict = Verdict.VIOLATION) -> None:
        if not self._symptom:
            self._symptom, self._message, self._verdict = symptom, message, verdict

    def _count(self, got: Array, watched: Bools, wrong: Bools, vacuous: Bools | None) -> None:
        counts = self._counts
        counts["wrong"] += int(wrong.sum())
        counts["nan"] += int((np.isnan(got) & watched).sum())
        counts["inf"] += int((np.isinf(got) & watched & wrong).sum())
        if vacuous is not None:
            counts["vacuous"] += int(vacuous.sum())
            counts["elements"] += got.size
        else:
            counts["elements"] += int(watched.sum())

    def _first_is_worst(self, output: str, got: Array, wrong: Bools) -> Worst:
        """The first wrong element, which is compared with no number and allowed by no bound."""
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        self._ratio = math.inf
        self._worst = Worst(output, at, float(got[at]), math.nan, math.inf, 0.0, 0.0)
        return self._worst

    def _sentence(self, output: str, wrong: Bools, judged: Bools) -> str:
        w = self._worst
        share = f"{int(wrong.sum())} of {int(judged.sum())} elements of {output} are wrong"
        if w is None:
            return share
        if self.runs:
            return (
                f"{output}{list(w.index)} is {w.got:.9g} from {self.runs[0]} and, from "
                f"{self.runs[1]}, expected to be {w.expected:.9g} (error {w.error:.2g}, bound "
                f"{w.bound:.2g}); {share}"
            )
        return (
            f"{output}{list(w.index)} is {w.got:.9g} and should be {w.expected:.9g} "
            f"(error {w.error:.2g}, bound {w.bound:.2g}); {share}"
        )
