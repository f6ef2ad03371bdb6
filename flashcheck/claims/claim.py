"""Claim: one sentence of the derivation with the number claimed, the number measured, a verdict."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class Finding(enum.StrEnum):
    """What measuring a claim came to."""

    HOLDS = "HOLDS"
    HOLDS_IF = "HOLDS IF"
    DOES_NOT_HOLD = "DOES NOT HOLD"
    REPORTED = "REPORTED"


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the table; all but `finding` are words for a person.

    topic      the part of the derivation that it belongs to
    method     how it was measured
    condition  what it needs where the finding is HOLDS IF
    evidence   a table of the numbers behind it, its header first
    """

    topic: str
    statement: str
    claimed: str
    measured: str
    finding: Finding
    method: str
    condition: str = ""
    evidence: tuple[tuple[str, ...], ...] = ()

    @property
    def verdict(self) -> str:
        conditional = self.finding is Finding.HOLDS_IF
        return f"{self.finding} {self.condition}" if conditional else str(self.finding)


def finding(always: bool, sometimes: bool = False) -> Finding:
    """HOLDS where it holds in every case, HOLDS IF where in those that a condition picks."""
    if always:
        return Finding.HOLDS
    return Finding.HOLDS_IF if sometimes else Finding.DOES_NOT_HOLD


def same_digits(measured: float, claimed: str) -> bool:
    """Whether `measured`, rounded to as many decimals as `claimed` shows, is that number."""
    return f"{measured:.{len(claimed.partition('.')[2])}f}" == claimed


def same_magnitude(measured: float, claimed: float) -> bool:
    """Whether the nearest powers of ten are the same: less than a factor of 3.2 or so apart."""
    return measured > 0 and round(math.log10(measured)) == round(math.log10(claimed))


def within_factor(measured: float, claimed: float, factor: float) -> bool:
    return claimed / factor <= measured <= claimed * factor
