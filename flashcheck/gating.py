"""Gate: kernels x properties x dtypes under a budget, told as events."""

from __future__ import annotations

import contextlib
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flashcheck import defect, environment
from flashcheck import regressions as kept
from flashcheck.afresh import Afresh
from flashcheck.budget import Budget
from flashcheck.causes import Cause, causes
from flashcheck.events import (
    Checked,
    Event,
    FailureFound,
    Listener,
    PowerSampled,
    RunFinished,
    RunStarted,
    TargetFailed,
    TargetFinished,
    TargetStarted,
)
from flashcheck.examples import Example, save
from flashcheck.explanation import Explanation, explain, of_a_kind
from flashcheck.kernel import Kernel, Target, TargetError
from flashcheck.law import Law, Subject, laws
from flashcheck.oracle.selfcheck import numpy_exp_error
from flashcheck.power.matrix import tally
from flashcheck.power.page import survivors
from flashcheck.power.sample import needed, sample
from flashcheck.probe import Probed, probe
from flashcheck.problem import Problem
from flashcheck.search import LOST, MIN_CHECKS, Failure, Search
from flashcheck.verdict import Check
from flashcheck.worker import InProcess, Worker

EXAMPLES = Path(".flashcheck/examples")
MAX_VACUOUS = 0.1
POWER_SHARE = 0.1
"""Checks that a sample of the gate's power takes, of those that were made."""

BESIDE = 12
"""Failures, the worst ones, that a declaration has to excuse besides the one it is offered for."""

RESERVE = 2.0
"""Seconds of a timed budget that are kept for what follows the search."""

OVERTIME = 3.0
"""Times its seconds that a budget may take until each property has enough checks."""

GateTarget = str | Kernel | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a run of the gate came to.

    exit_code as in the kernel contract; reason: one line; failures: one for each cause.
    """

    exit_code: int
    reason: str
    seed: int
    failures: tuple[FailureFound, ...] = ()

    @property
    def passed(self) -> bool:
        return self.exit_code == 0


@dataclass(slots=True)
class _Tally:
    """What decides the exit code."""

    failures: list[FailureFound] = field(default_factory=list)
    could_not_run: list[str] = field(default_factory=list)
    proves_nothing: list[str] = field(default_factory=list)


def gate(
    targets: Sequence[GateTarget],
    *,
    dtypes: Sequence[str] | None = None,
    device: str | None = None,
    budget: str = "pr",
    seed: int | None = None,
    examples: Path | str = EXAMPLES,
    regressions: Path | str = kept.FOLDER,
    isolate: bool = True,
    timeout: float = 60.0,
    max_vacuous: float = MAX_VACUOUS,
    power: bool = False,
    min_power: float | None = None,
    command: str = "",
    listeners: Sequence[Listener] = (),
) -> Result:
    """Gate kernels: search inputs on which one leaves the bound or breaks a law.

    targets: TARGET strings (each kernel runs in a process of its own), or callables and
    Kernels (run in this process). dtypes: None for all that a kernel takes. budget: smoke,
    pr, nightly, a number of checks ("500") or of seconds ("30s"), for each target. seed: None
    for a fresh one; it is in the result. Failing inputs are saved under `examples`. Kept ones,
    flashcheck's own and those of the folder `regressions`, are checked before any is generated.
    power: search some kernels that are broken on purpose as well, by a tenth of the checks;
    min_power: the lower confidence limit of the share caught that is asked for, by as many of
    them as it takes.

    Raises ValueError for an unknown budget or dtype. Everything else, a kernel that cannot be
    loaded included, is in the result.
    """
    limits = Budget.parse(budget)
    chosen = random.SystemRandom().randrange(10**7) if seed is None else seed
    run = _Run(
        limits=limits,
        dtypes=tuple(dtypes) if dtypes else None,
        device=device,
        seed=chosen,
        examples=Path(examples),
        regressions=Path(regressions),
        isolate=isolate,
        timeout=timeout,
        max_vacuous=max_vacuous,
        power=power or min_power is not None,
        min_power=min_power,
        command=command,
        listeners=tuple(listeners),
    )
    return run.all(targets)


@dataclass(slots=True)
class _Run:
    limits: Budget
    dtypes: tuple[str, ...] | None
    device: str | None
    seed: int
    examples: Path
    regressions: Path
    isolate: bool
    timeout: float
    max_vacuous: float
    power: bool
    min_power: float | None
    command: str
    listeners: tuple[Listener, ...]
    laws: tuple[Law, ...] = ()
    kept: kept.Regressions = field(default_factory=kept.Regressions)
    environment: dict[str, Any] = field(default_factory=dict)
    tally: _Tally = field(default_factory=_Tally)
    names: set[str] = field(default_factory=set)
    made: Counter[str] = field(default_factory=Counter)

    def all(self, targets: Sequence[GateTarget]) -> Result:
        start = time.monotonic()
        self.laws = laws()
        self.kept = kept.read(self.regressions)
        self.tally.could_not_run += [f"a regression: {line}" for line in self.kept.damaged]
        self.environment = environment.collect(self.device)
        names = tuple(t if isinstance(t, str) else _name(t) for t in targets)
        self.emit(
            RunStarted(
                names, self.dtypes, self.device, self.limits.name, self.seed, self.command,
                self.environment,
            )
        )  # fmt: skip
        measured = numpy_exp_error()
        if not measured.ok:
            self.tally.proves_nothing.append(f"the oracle's self-check failed: {measured}")
        interrupted = False
        try:
            for target in dict.fromkeys(targets) if measured.ok else ():
                self._target(target)
            if self.power and self.made:
                self._sample()
        except KeyboardInterrupt:
            interrupted = True
        code, reason = self._exit(interrupted)
        self.emit(RunFinished(code, reason, time.monotonic() - start, partial=interrupted))
        return Result(code, reason, self.seed, tuple(self.tally.failures))

    def _sample(self) -> None:
        """Would this run have caught a fault? `made` counts its checks by dtype."""
        found = sample(
            int(POWER_SHARE * self.made.total()), self.seed, set(self.made),
            1 if self.min_power is None else needed(self.min_power),
        )  # fmt: skip
        if not found:
            return
        of, alive = tally(found), tuple(survivors(found))
        self.emit(PowerSampled(of.trials, of.killed, of.limit, of.percentile(0.5), alive))
        if self.min_power is not None and of.limit < self.min_power:
            self.tally.proves_nothing.append(
                f"power is at least {of.limit:.3f} ({of.killed} of {of.trials} faults caught), "
                f"below {self.min_power:g}"
            )

    def emit(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def _exit(self, interrupted: bool) -> tuple[int, str]:
        tally = self.tally
        if interrupted:
            return 130, "interrupted: the report is partial"
        if tally.failures:
            n = len(tally.failures)
            return 1, f"{n} cause{'s' if n > 1 else ''} of failure"
        if tally.could_not_run:
            return 2, tally.could_not_run[0]
        if tally.proves_nothing:
            return 3, tally.proves_nothing[0]
        return 0, "every check is within its bound"

    @contextlib.contextmanager
    def _runner(self, target: GateTarget) -> Iterator[Worker | InProcess]:
        runner: Worker | InProcess
        if isinstance(target, str) and self.isolate:
            # A first call compiles; on a CPU and by a short timeout it may not take minutes.
            runner = Worker(
                target,
                self.device,
                timeout=self.timeout,
                warmup_timeout=max(30.0, 5 * self.timeout),
            )
        else:
            runner = InProcess(target, self.device)
        with runner:
            yield runner

    def _target(self, given: GateTarget) -> None:
        start = time.monotonic()
        spec = given if isinstance(given, str) else _name(given)
        with self._runner(given) as runner:
            try:
                target = runner.start()
                # Two files of one name in two folders are two kernels.
                if target.name in self.names:
                    target = replace(target, name=spec)
                self.names.add(target.name)
                device = runner.device
                probed = probe(runner, target, self.dtypes)
            except TargetError as error:
                self.emit(TargetFailed(spec, str(error)))
                self.tally.could_not_run.append(f"{spec}: {error}")
                return
            if self._refused(spec, probed):
                return
            subjects = {
                dtype: Subject(runner, target, space, device)
                for dtype, space in probed.spaces.items()
            }
            untested = probed.untested + kept.untested(self.kept, probed.spaces, target)
            self.emit(TargetStarted(target, tuple(subjects), device, untested, self.limits.checks))
            searches: list[Search] = []
            try:
                self._search(target, subjects, searches, start)
            except KeyboardInterrupt:
                self._explain(target, subjects, searches, interrupted=True)
                raise
            self._explain(target, subjects, searches)
            thin = self._judge(target, searches)
        for search in searches:
            self.made[search.subject.space.dtype] += search.counts.total()
        stopped = next((s.stopped_by for s in searches if s.stopped_by != "checks"), "")
        self.emit(TargetFinished(target.name, time.monotonic() - start, stopped, thin))

    def _refused(self, spec: str, probed: Probed) -> bool:
        """Whether every dtype was refused, so that there is nothing to gate."""
        if probed.spaces:
            return False
        by_message: dict[str, list[str]] = {}
        for dtype, message in probed.refused:
            by_message.setdefault(message, []).append(dtype)
        said = "; ".join(f"{', '.join(ds)}: {message}" for message, ds in by_message.items())
        message = f"every dtype was refused ({said}); name one that it takes with --dtype"
        if not self.dtypes:
            message += "; float8 was not tried"
        self.emit(TargetFailed(spec, message))
        self.tally.could_not_run.append(f"{spec}: {message}")
        return True

    def _search(
        self, target: Target, subjects: dict[str, Subject], searches: list[Search], start: float
    ) -> None:
        checks, seconds = self.limits.checks, self.limits.seconds
        own = None if seconds is None else max(seconds - RESERVE, seconds / 2)
        for i, (dtype, subject) in enumerate(subjects.items()):
            now = time.monotonic()

            def share(end: float, now: float = now, left: int = len(subjects) - i) -> float:
                return now + max(0.0, end - now) / left

            search = Search(
                subject,
                self.laws,
                quota=None
                if checks is None
                else checks // len(subjects) + (i < checks % len(subjects)),
                deadline=None if own is None else share(start + own),
                latest=None if own is None else share(start + own * OVERTIME),
                large=self.limits.large,
                complete=self.limits.complete,
                checked=self._checked(target, dtype),
            )
            searches.append(search)
            for example, config, check in kept.first(search, self.kept.examples):
                self.emit(Checked(target.name, dtype, example.problem, config, check, example.id))
            search.run(self.seed * 131 + zlib.crc32(f"{target.name} {dtype}".encode()))
            if search.stopped_by == LOST:
                # The same crash or hang in every dtype would cost minutes and tell nothing new.
                return

    def _checked(self, target: Target, dtype: str) -> Callable[[Problem, str | None, Check], None]:
        def checked(problem: Problem, config: str | None, check: Check) -> None:
            self.emit(Checked(target.name, dtype, problem, config, check))

        return checked

    def _explain(
        self,
        target: Target,
        subjects: dict[str, Subject],
        searches: list[Search],
        interrupted: bool = False,
    ) -> None:
        failures = [f for search in searches for f in search.failures]
        runs = 0 if interrupted else None
        afresh = None if interrupted else Afresh()
        told: dict[tuple[str, ...], str] = {}
        for cause in causes(failures, subjects, self.laws[0], max_runs=runs):
            subject = subjects[cause.dtype]
            example = self._example(target, subject, cause)
            # First of all: what follows runs the kernel again, and may take long or be stopped.
            save(example, self.examples)
            try:
                example, words = self._explained(target, subjects, cause, example, afresh, failures)
            except KeyboardInterrupt:
                self._found(target, cause, example)
                raise
            save(example, self.examples)
            faults = words.faults if words else ()
            alike = told.get(faults, "")
            if words and alike:
                short = of_a_kind(words, alike, subject, cause.law, example.id, cause.count)
                example = replace(example, text=short)
            elif faults:
                told[faults] = example.id
            self._found(target, cause, example, alike)

    def _found(self, target: Target, cause: Cause, example: Example, alike: str = "") -> None:
        found = FailureFound(
            target=target.name,
            dtype=cause.dtype,
            example_id=example.id,
            problem=cause.problem,
            config=cause.config,
            check=cause.check,
            count=cause.count,
            properties=cause.properties,
            dtypes=cause.dtypes,
            contrast=example.contrast,
            text=example.text,
            found=cause.found,
            alike=alike,
        )
        if not alike:
            self.tally.failures.append(found)
        self.emit(found)

    def _example(self, target: Target, subject: Subject, cause: Cause) -> Example:
        return Example(
            problem=cause.problem,
            captured=cause.captured,
            target=target.spec,
            name=target.name,
            source=target.source,
            config=cause.config,
            device=subject.device,
            property=cause.law.name,
            check=cause.check,
            seed=self.seed,
            found=cause.found if cause.captured is None else None,
            environment=self.environment,
            mask_forms=subject.space.mask_forms,
            dense=subject.space.dense,
        )

    def _explained(
        self,
        target: Target,
        subjects: dict[str, Subject],
        cause: Cause,
        example: Example,
        afresh: Afresh | None,
        failures: Sequence[Failure],
    ) -> tuple[Example, Explanation | None]:
        """The example with its explanation, or with why there is none.

        afresh: None where there is no time for more than what is wrong with the result.
        """
        subject = subjects[cause.dtype]
        worst = sorted(
            (f for f in failures if f.dtype == cause.dtype), key=lambda f: -f.check.ratio
        )[:BESIDE]
        contrast: tuple[str, ...] = ()
        words: Explanation | None = None
        try:
            words = explain(
                subject,
                cause.law,
                cause.problem,
                cause.config,
                cause.check,
                example_id=example.id,
                command=self._again(target, cause.dtype),
                other_dtypes=subjects,
                captured=cause.captured,
                after_others=afresh is not None and afresh.passes(subject, cause),
                quick=afresh is None,
                beside=[(f.law, subject.case(f.problem, f.config, f.captured)) for f in worst],
            )
            text, contrast = words.text, words.contrast
        except Exception as error:
            text = f"{example.brief()}\n  {defect.told('explain this failure', error)}"
        if cause.unshrunk:
            text += f"\n  {cause.unshrunk}"
        if cause.regression:
            text += f"\n  seen first on the regression {cause.regression}"
        return replace(example, contrast=contrast, text=text), words

    def _again(self, target: Target, dtype: str) -> str:
        """The command that repeats the search that found a failure."""
        dtypes = ",".join(self.dtypes) if self.dtypes else ""
        parts = ["flashcheck gate", target.spec]
        if dtypes:
            parts.append(f"--dtype {dtypes}")
        if self.device:
            parts.append(f"--device {self.device}")
        if self.limits.name != "pr":
            parts.append(f"--budget {self.limits.name}")
        return " ".join([*parts, f"--seed {self.seed}"])

    def _judge(self, target: Target, searches: list[Search]) -> tuple[str, ...]:
        """What this target's run fails to prove, for the exit code and the report."""
        thin = []
        for search in searches:
            dtype = search.subject.space.dtype
            few = search.thin()
            if few:
                names = ", ".join(few[:4]) + (f" and {len(few) - 4} more" if len(few) > 4 else "")
                thin.append(
                    f"{dtype}: fewer than {MIN_CHECKS} checks of {names}; give it a larger --budget"
                )
            total = search.counts.total()
            if total and search.vacuous > self.max_vacuous * total:
                thin.append(
                    f"{dtype}: {search.vacuous} of {total} checks are vacuous, more than "
                    f"{self.max_vacuous:.0%}"
                )
        self.tally.proves_nothing += [f"{target.name} {line}" for line in thin]
        thin += [
            f"{search.subject.space.dtype}: no problem that the kernel takes is about {name}"
            for search in searches
            for name in search.absent()
        ]
        return tuple(thin)


def _name(target: Kernel | Callable[..., Any]) -> str:
    if isinstance(target, Kernel):
        return target.name or _name(target.fn)
    return str(getattr(target, "__qualname__", None) or type(target).__name__)
