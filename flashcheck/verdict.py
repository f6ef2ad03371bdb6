"""Verdict: what one check found, with the numbers behind it."""

from __future__ import annotations

import builtins
import enum
import math
from dataclasses import dataclass, field
from typing import Any


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
    """

    property: str
    verdict: Verdict
    ratio: float = 0.0
    symptom: str = ""
    message: str = ""
    worst: Worst | None = None
    counts: dict[str, int] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)

    # The field `property` hides the decorator of that name.
    @builtins.property
    def failed(self) -> bool:
        return self.verdict.failed

    def raise_if_failed(self) -> Check:
        """Raise CheckFailed, with the message, unless the check holds."""
        if self.failed:
            raise CheckFailed(self)
        return self


class CheckFailed(AssertionError):
    """A check that does not hold; `.check` has the numbers."""

    def __init__(self, check: Check) -> None:
        self.check = check
        super().__init__(check.message or f"{check.property}: {check.verdict}")


def headroom(ratio: float) -> float:
    """Bits between the error and its bound, -log2(ratio); inf where there is no error."""
    return math.inf if ratio <= 0 else -math.log2(ratio)
