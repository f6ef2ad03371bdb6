"""RunSummary: a run as pure data. Every report is written from it alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from flashcheck.formats import FORMATS

AGREEMENT = "agreement"
"""The property that compares with the oracle. Its ratios alone make the medians of a dtype
and of a family: a law that holds bit for bit has ratio 0 and would pull them down."""


@dataclass(frozen=True, slots=True)
class WorstCheck:
    """The check with the largest ratio. `problem` is a sentence, `recipe` its JSON."""

    ratio: float
    property: str
    verdict: str
    problem: str
    recipe: dict[str, Any]
    config: str | None = None


@dataclass(frozen=True, slots=True)
class BiasSummary:
    """Signed error of `out` in ulp: the mean of problems' means, over checks that hold.

    `positive` and `negative` count problems by the sign of their mean: a sign test on them
    is not swayed by the few problems whose error in ulp is huge from cancellation.
    """

    mean: float
    standard_error: float | None
    problems: int
    positive: int
    negative: int

    @property
    def significant(self) -> bool:
        """Whether mean or signs are more than three standard errors from no bias."""
        signs = self.positive + self.negative
        if signs >= 20 and abs(self.positive - self.negative) > 3 * math.sqrt(signs):
            return True
        return bool(self.standard_error) and abs(self.mean) > 3 * (self.standard_error or 0)


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Checks of one property or family. `worst` is None where all were vacuous, `bias` where
    none that holds was compared with the oracle. A bias is reported, never judged."""

    checks: int
    failures: int
    vacuous: int
    worst: float | None
    median: float | None
    bias: BiasSummary | None = None


@dataclass(frozen=True, slots=True)
class UlpSummary:
    """|error| of `out` in units in the last place of its dtype, over checks not vacuous.

    Every problem weighs the same, however many elements it has. `max` is over all elements.
    """

    p50: float | None
    p90: float | None
    p99: float | None
    max: float | None
    problems: int


@dataclass(frozen=True, slots=True)
class OutputSummary:
    """Ratios of one output over the agreement checks; `error_max` is absolute, if known."""

    worst: float
    median: float | None
    error_max: float | None = None


@dataclass(frozen=True, slots=True)
class DtypeSummary:
    """One target in one dtype. checks = passed + failed + vacuous + outside; refusals
    (UNSUPPORTED) and problems drawn outside the contract are counted apart; `refusals` counts
    them by what the kernel said."""

    dtype: str
    checks: int
    passed: int
    failed: int
    vacuous: int
    outside: int
    refused: int
    verdicts: dict[str, int]
    worst: WorstCheck | None
    median: float | None
    headroom: float | None
    out: OutputSummary | None
    lse: OutputSummary | None
    ulp: UlpSummary | None
    bias: BiasSummary | None
    by_property: dict[str, GroupSummary]
    by_scores: dict[str, GroupSummary]
    by_values: dict[str, GroupSummary]
    refusals: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """One cause: the smallest counterexample, and how many checks share the cause."""

    target: str
    dtype: str
    example_id: str
    property: str
    verdict: str
    symptom: str
    message: str
    ratio: float
    count: int
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]
    problem: str
    recipe: dict[str, Any]
    config: str | None
    text: str


@dataclass(frozen=True, slots=True)
class SizesSummary:
    """Sizes of the problems on which a check that was not vacuous ran, generated or kept.

    The lengths and the heads are the largest; heads: batch * query heads. sequences: the most of
    a packed batch or a paged cache, 0 where none was tried.
    """

    head_sizes: tuple[int, ...]
    queries: int
    keys: int
    heads: int
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class TargetSummary:
    """`declared` are the declarations that differ from the default contract; `regressions`
    counts the kept examples that were checked before any problem was generated; `sizes` is
    None where no check says anything."""

    name: str
    spec: str
    device: str
    dtypes: tuple[str, ...]
    options: tuple[str, ...]
    declared: tuple[str, ...]
    untested: tuple[str, ...]
    thin: tuple[str, ...]
    planned: int | None
    seconds: float | None
    stopped_by: str
    source: str | None
    file: str | None
    line: int | None
    results: dict[str, DtypeSummary]
    failures: tuple[FailureSummary, ...]
    regressions: int = 0
    sizes: SizesSummary | None = None


@dataclass(frozen=True, slots=True)
class TargetError:
    """A target that could not be run at all."""

    spec: str
    message: str


@dataclass(frozen=True, slots=True)
class PowerSummary:
    """A sample of the gate's power, as `events.PowerSampled` has it."""

    trials: int
    killed: int
    limit: float
    problems: float
    survivors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run. `exit_code` is None, and `partial` true, until RunFinished was heard."""

    flashcheck: str
    seed: int
    budget: str
    command: str
    device: str | None
    dtypes: tuple[str, ...] | None
    requested: tuple[str, ...]
    environment: dict[str, Any]
    targets: tuple[TargetSummary, ...] = ()
    errors: tuple[TargetError, ...] = ()
    exit_code: int | None = None
    reason: str = ""
    seconds: float = 0.0
    partial: bool = True
    power: PowerSummary | None = None

    @property
    def failures(self) -> tuple[FailureSummary, ...]:
        return tuple(f for t in self.targets for f in t.failures)

    @property
    def checks(self) -> int:
        return sum(r.checks for t in self.targets for r in t.results.values())

    @property
    def tested_dtypes(self) -> tuple[str, ...]:
        """Widest first, then by name."""
        found = {d for t in self.targets for d in t.results}
        order = list(FORMATS)
        return tuple(sorted(found, key=lambda d: (order.index(d) if d in order else 99, d)))
