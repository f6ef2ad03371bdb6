"""Verdict: what one check found, with the numbers behind it."""

from __future__ import annotations

import builtins
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import hypothesis

from flashcheck import defect


class Verdict(enum.StrEnum):
    """The outcome of a check (see docs/contract.md)."""

    PASS = "PASS"
    VIOLATION = "VIOLATION"
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    NONDETERMINISTIC = "NONDETERMINISTIC"
    UNSUPPORTED = "UNSUPPORTED"
    VACUOUS = "VACUOUS"

    @property
    def failed(self) -> bool:
        return self in (
            Verdict.VIOLATION,
            Verdict.CRASH,
            Verdict.TIMEOUT,
            Verdict.NONDETERMINISTIC,
        )


@dataclass(frozen=True, slots=True)
class Worst:
    """The worst element of a check. `index` is (b, h, query[, channel])."""

    output: str
    index: tuple[int, ...]
    got: float
    expected: float
    error: float
    bound: float
    radius: float


@dataclass(frozen=True, slots=True)
class Check:
    """One kernel's result on one problem, judged by one property.

    ratio     the largest (error - radius) / bound over the judged elements; inf for a wrong
              NaN or infinity, a crash, a timeout or a change that should not be
    symptom   a short stable label of what is wrong, "" when nothing is: failures of one
              kernel are grouped by it
    message   one sentence for a person, "" when nothing is wrong
    counts    elements judged, wrong, nan, inf, vacuous
    explain   makes the whole counterexample as text, where more is known than the message;
              that may run the kernel again
    """

    property: str
    verdict: Verdict
    ratio: float = 0.0
    symptom: str = ""
    message: str = ""
    worst: Worst | None = None
    counts: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)
    explain: Callable[[], str] | None = field(default=None, compare=False, repr=False)

    # The field `property` hides the decorator of that name.
    @builtins.property
    def failed(self) -> bool:
        return self.verdict.failed

    def raise_if_failed(self) -> Check:
        """Return the check if it holds, and raise CheckFailed otherwise.

        UNSUPPORTED is no failure of the kernel, but proves nothing: inside a Hypothesis test
        the problem is rejected, so that another is drawn; elsewhere CheckFailed is raised too.
        """
        if self.verdict is Verdict.UNSUPPORTED and hypothesis.currently_in_test_context():
            hypothesis.reject()
        if self.failed or self.verdict is Verdict.UNSUPPORTED:
            raise CheckFailed(self)
        return self


class CheckFailed(AssertionError):
    """A check that does not hold; `.check` has the numbers."""

    def __init__(self, check: Check) -> None:
        self.check = check
        super().__init__(check)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        # Only when it is read: a shrinking test raises this hundreds of times and shows one.
        plain = self.check.message or f"{self.check.property}: {self.check.verdict}"
        if self.check.explain is None:
            return plain
        try:
            return self.check.explain()
        except Exception as error:
            return f"{plain}\n{defect.told('explain this failure', error)}"


def headroom(ratio: float) -> float:
    """Bits between the error and its bound, -log2(ratio); inf where there is no error."""
    return math.inf if ratio <= 0 else -math.log2(ratio)
