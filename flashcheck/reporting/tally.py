"""Running statistics whose memory does not grow with the number of checks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from flashcheck.verdict import Check, Verdict

_LOG_GAMMA = math.log(1.01)


class Quantiles:
    r"""Quantiles of non-negative numbers to a relative error of 0.5 %.

    A number x is counted in the bin $\lceil \log_\gamma x \rceil$ with $\gamma = 1.01$; a bin
    answers with $2\gamma^k / (\gamma + 1)$, which is within $(\gamma - 1) / (\gamma + 1)$ of
    all its numbers. Zero and infinity have bins of their own; NaN is not counted.

    Reference: Masson, Rim and Lee, *DDSketch*, PVLDB 12 (2019), section 2.
    """

    __slots__ = ("_bins", "_infinite", "_total", "_zero", "largest", "smallest")

    def __init__(self) -> None:
        self._bins: dict[int, float] = {}
        self._zero = self._infinite = self._total = 0.0
        self.smallest = math.inf
        self.largest = 0.0

    def add(self, x: float, weight: float = 1.0) -> None:
        if math.isnan(x):
            return
        x = abs(x)
        self._total += weight
        self.smallest, self.largest = min(self.smallest, x), max(self.largest, x)
        if x == 0.0:
            self._zero += weight
        elif math.isinf(x):
            self._infinite += weight
        else:
            key = math.ceil(math.log(x) / _LOG_GAMMA)
            self._bins[key] = self._bins.get(key, 0.0) + weight

    def quantile(self, q: float) -> float | None:
        """The smallest counted number with at least the share `q` at or below it."""
        if not self._total:
            return None
        # The slack keeps sums of weights like 1/32 from missing their own total.
        rank = q * self._total * (1 - 1e-9)
        if rank <= self._zero:
            return 0.0 if self._zero else self.smallest
        seen = self._zero
        for key in sorted(self._bins):
            seen += self._bins[key]
            if seen >= rank:
                middle = 2 / (1 + math.exp(_LOG_GAMMA)) * math.exp(key * _LOG_GAMMA)
                return min(max(middle, self.smallest), self.largest)
        return self.largest


@dataclass(slots=True)
class Moments:
    """Mean and its standard error by Welford's recurrence; only finite numbers count."""

    n: int = 0
    mean: float = 0.0
    positive: int = 0
    negative: int = 0
    _squares: float = 0.0

    def add(self, x: float) -> None:
        if not math.isfinite(x):
            return
        self.n += 1
        self.positive += x > 0
        self.negative += x < 0
        step = x - self.mean
        self.mean += step / self.n
        self._squares += step * (x - self.mean)

    @property
    def standard_error(self) -> float | None:
        """None from fewer than two numbers."""
        if self.n < 2:
            return None
        return math.sqrt(self._squares / (self.n - 1) / self.n)


@dataclass(slots=True)
class Tally:
    """Counts and ratios of a group of checks: of a property, of a family, of a dtype."""

    checks: int = 0
    failures: int = 0
    vacuous: int = 0
    worst: float | None = None
    ratios: Quantiles = field(default_factory=Quantiles)
    bias: Moments = field(default_factory=Moments)

    def add(self, check: Check, typical: bool = True) -> bool:
        """Count one check; True where its ratio is the worst so far.

        `typical` says whether ratio and signed error count for the median and the bias. A
        vacuous check has no ratio that means anything: its bound is too wide.
        """
        self.checks += 1
        self.failures += check.failed
        if check.verdict is Verdict.VACUOUS:
            self.vacuous += 1
            return False
        # A wrong NaN is the worst there is, not a number to be dropped.
        ratio = math.inf if math.isnan(check.ratio) else check.ratio
        if typical:
            self.ratios.add(max(ratio, 0.0))
            if not check.failed and check.stats.get("signed_mean") is not None:
                self.bias.add(check.stats["signed_mean"])
        if self.worst is None or ratio > self.worst:
            self.worst = ratio
            return True
        return False
