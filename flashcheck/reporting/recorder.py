"""The listener that folds the events of a run into a RunSummary."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flashcheck.events import (
    Checked,
    Event,
    FailureFound,
    PowerSampled,
    RunFinished,
    RunStarted,
    TargetFailed,
    TargetFinished,
    TargetStarted,
)
from flashcheck.kernel import Contract, Kernel
from flashcheck.problem import Problem
from flashcheck.reporting.summary import (
    AGREEMENT,
    BiasSummary,
    DtypeSummary,
    FailureSummary,
    GroupSummary,
    OutputSummary,
    PowerSummary,
    RunSummary,
    SizesSummary,
    TargetError,
    TargetSummary,
    UlpSummary,
    WorstCheck,
)
from flashcheck.reporting.tally import Quantiles, Tally
from flashcheck.verdict import Check, Verdict, headroom

MOST_REFUSALS = 20
"""Messages that are kept, the most frequent ones."""


class Recorder:
    """The listener that folds events; `summary()` at any time is what was heard so far."""

    def __init__(self) -> None:
        self._run: RunStarted | None = None
        self._targets: dict[str, _TargetRecord] = {}
        self._errors: list[TargetError] = []
        self._power: PowerSummary | None = None
        self._finished: RunFinished | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._run = event
            case TargetStarted():
                self._targets[event.target.name] = _TargetRecord(event)
            case TargetFailed():
                self._errors.append(TargetError(event.spec, event.message))
            case Checked():
                target = self._targets[event.target]
                if event.regression and event.check.verdict is not Verdict.UNSUPPORTED:
                    target.regressions.add(event.regression)
                if event.dtype not in target.results:
                    target.results[event.dtype] = _DtypeRecord(event.dtype)
                target.results[event.dtype].add(event)
                target.tried(event)
            case FailureFound():
                self._targets[event.target].fail(_failure(event), event.alike)
            case TargetFinished():
                self._targets[event.target].finished = event
            case PowerSampled():
                self._power = PowerSummary(
                    event.trials, event.killed, event.limit, event.problems, event.survivors
                )
            case RunFinished():
                self._finished = event

    def summary(self) -> RunSummary:
        """Raises RuntimeError before RunStarted."""
        run, end = self._run, self._finished
        if run is None:
            raise RuntimeError("the run has not started: there is nothing to summarise")
        return RunSummary(
            flashcheck=str(run.environment.get("versions", {}).get("flashcheck", "unknown")),
            seed=run.seed,
            budget=run.budget,
            command=run.command,
            device=run.device,
            dtypes=run.dtypes,
            requested=run.targets,
            environment=run.environment,
            targets=tuple(t.freeze() for t in self._targets.values()),
            errors=tuple(self._errors),
            exit_code=end.exit_code if end else None,
            reason=end.reason if end else "the run did not finish",
            seconds=end.seconds if end else 0.0,
            partial=end.partial if end else True,
            power=self._power,
        )


@dataclass(slots=True)
class _TargetRecord:
    started: TargetStarted
    results: dict[str, _DtypeRecord] = field(default_factory=dict)
    failures: list[FailureSummary] = field(default_factory=list)
    regressions: set[str] = field(default_factory=set)
    finished: TargetFinished | None = None
    head_sizes: set[int] = field(default_factory=set)
    queries: int = 0
    keys: int = 0
    heads: int = 0
    sequences: int = 0

    def tried(self, event: Checked) -> None:
        check, p = event.check, event.problem
        if check.verdict in (Verdict.UNSUPPORTED, Verdict.VACUOUS) or check.stats.get("outside"):
            return
        self.head_sizes.add(p.dim)
        self.queries, self.keys = max(self.queries, p.len_q), max(self.keys, p.len_k)
        self.heads = max(self.heads, p.batch * p.heads)
        self.sequences = max(self.sequences, len(p.seqlens_k))

    def fail(self, failure: FailureSummary, alike: str) -> None:
        """Note a failure, or add it to the one of the same likely cause."""
        for number, other in enumerate(self.failures):
            if alike and other.example_id == alike:
                self.failures[number] = replace(
                    other,
                    count=other.count + failure.count,
                    properties=tuple(dict.fromkeys(other.properties + failure.properties)),
                    dtypes=tuple(dict.fromkeys(other.dtypes + failure.dtypes)),
                )
                return
        self.failures.append(failure)

    def _sizes(self) -> SizesSummary | None:
        if not self.head_sizes:
            return None
        sizes = tuple(sorted(self.head_sizes))
        return SizesSummary(sizes, self.queries, self.keys, self.heads, self.sequences)

    def freeze(self) -> TargetSummary:
        target, end = self.started.target, self.finished
        return TargetSummary(
            name=target.name,
            spec=target.spec,
            device=self.started.device,
            dtypes=self.started.dtypes,
            options=target.options,
            declared=declared(target.kernel),
            untested=self.started.untested,
            thin=end.thin if end else (),
            planned=self.started.checks_planned,
            seconds=end.seconds if end else None,
            stopped_by=end.stopped_by if end else "the run did not finish",
            source=target.source,
            file=_relative(target.file),
            line=target.line,
            results={dtype: record.freeze() for dtype, record in self.results.items()},
            failures=tuple(self.failures),
            regressions=len(self.regressions),
            sizes=self._sizes(),
        )


@dataclass(slots=True)
class _DtypeRecord:
    dtype: str
    total: Tally = field(default_factory=Tally)
    verdicts: Counter[str] = field(default_factory=Counter)
    outside: int = 0
    worst: Checked | None = None
    properties: dict[str, Tally] = field(default_factory=dict)
    scores: dict[str, Tally] = field(default_factory=dict)
    values: dict[str, Tally] = field(default_factory=dict)
    out: Quantiles = field(default_factory=Quantiles)
    lse: Quantiles = field(default_factory=Quantiles)
    lse_error: float | None = None
    ulp: Quantiles = field(default_factory=Quantiles)
    ulp_max: float | None = None
    ulp_problems: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, event: Checked) -> None:
        check = event.check
        self.verdicts[str(check.verdict)] += 1
        if check.verdict is Verdict.UNSUPPORTED:
            self.refusals[check.message] += 1
            return
        if check.stats.get("outside") and not check.failed:
            self.outside += 1
            return
        typical = check.property == AGREEMENT
        if self.total.add(check, typical):
            self.worst = event
        for groups, key, counts in (
            (self.properties, check.property, True),
            (self.scores, event.problem.scores, typical),
            (self.values, event.problem.values, typical),
        ):
            groups.setdefault(key, Tally()).add(check, counts)
        if typical and check.verdict is not Verdict.VACUOUS:
            self._add_errors(check)

    def _add_errors(self, check: Check) -> None:
        stats = check.stats
        for quantiles, key in ((self.out, "ratio_out"), (self.lse, "ratio_lse")):
            if stats.get(key) is not None:
                quantiles.add(stats[key])
        self.lse_error = _larger(self.lse_error, stats.get("lse_error_max"))
        sample = [float(x) for x in stats.get("ulp", ())]
        for ulp in sample:
            self.ulp.add(ulp, 1 / len(sample))
        largest = stats.get("ulp_max")
        if largest is None and sample:
            largest = max(sample)
        self.ulp_max = _larger(self.ulp_max, largest)
        self.ulp_problems += largest is not None

    def freeze(self) -> DtypeSummary:
        total, worst = self.total, self.worst
        return DtypeSummary(
            dtype=self.dtype,
            checks=total.checks + self.outside,
            passed=total.checks - total.failures - total.vacuous,
            failed=total.failures,
            vacuous=total.vacuous,
            outside=self.outside,
            refused=self.verdicts[Verdict.UNSUPPORTED],
            verdicts=dict(self.verdicts),
            worst=_worst(worst) if worst else None,
            median=total.ratios.quantile(0.5),
            headroom=None if total.worst is None else headroom(total.worst),
            out=_output(self.out),
            lse=_output(self.lse, self.lse_error),
            ulp=self._freeze_ulp(),
            bias=_bias(total),
            by_property=_groups(self.properties),
            by_scores=_groups(self.scores),
            by_values=_groups(self.values),
            refusals=dict(self.refusals.most_common(MOST_REFUSALS)),
        )

    def _freeze_ulp(self) -> UlpSummary | None:
        if not self.ulp_problems:
            return None
        p50, p90, p99 = (self.ulp.quantile(q) for q in (0.5, 0.9, 0.99))
        return UlpSummary(p50, p90, p99, self.ulp_max, self.ulp_problems)


def declared(kernel: Kernel) -> tuple[str, ...]:
    """What a kernel declares beyond the defaults, as `field=value`."""
    found = [
        f"{f.name}={getattr(kernel, f.name)!r}"
        for f in fields(Kernel)
        if f.name not in ("fn", "_", "name", "dtypes", "configs", "contract")
        and getattr(kernel, f.name) != f.default
    ]
    found += [
        f"contract.{f.name}={getattr(kernel.contract, f.name)!r}"
        for f in fields(Contract)
        if getattr(kernel.contract, f.name) != f.default
    ]
    return tuple(found)


def _worst(event: Checked) -> WorstCheck:
    check = event.check
    ratio = math.inf if math.isnan(check.ratio) else check.ratio
    sentence, recipe = _problem(event.problem)
    return WorstCheck(ratio, check.property, str(check.verdict), sentence, recipe, event.config)


def _failure(event: FailureFound) -> FailureSummary:
    sentence, recipe = _problem(event.problem)
    check = event.check
    return FailureSummary(
        target=event.target,
        dtype=event.dtype,
        example_id=event.example_id,
        property=check.property,
        verdict=str(check.verdict),
        symptom=check.symptom,
        message=check.message,
        ratio=math.inf if math.isnan(check.ratio) else check.ratio,
        count=event.count,
        properties=event.properties,
        dtypes=event.dtypes,
        problem=sentence,
        recipe=recipe,
        config=event.config,
        text=event.text,
    )


def _problem(problem: Problem) -> tuple[str, dict[str, Any]]:
    return str(problem), problem.to_dict()


def _groups(tallies: dict[str, Tally]) -> dict[str, GroupSummary]:
    return {
        name: GroupSummary(
            t.checks, t.failures, t.vacuous, t.worst, t.ratios.quantile(0.5), _bias(t)
        )
        for name, t in sorted(tallies.items())
    }


def _bias(tally: Tally) -> BiasSummary | None:
    b = tally.bias
    return BiasSummary(b.mean, b.standard_error, b.n, b.positive, b.negative) if b.n else None


def _output(ratios: Quantiles, error: float | None = None) -> OutputSummary | None:
    median = ratios.quantile(0.5)
    return None if median is None else OutputSummary(ratios.largest, median, error)


def _larger(a: float | None, b: float | None) -> float | None:
    if b is None or math.isnan(b):
        return a
    return b if a is None else max(a, b)


def _relative(file: str | None) -> str | None:
    """The path below the current folder, else the bare name: reports hold no user paths."""
    if file is None:
        return None
    path = Path(file)
    try:
        return path.resolve().relative_to(Path.cwd()).as_posix()
    except ValueError:
        return path.name
