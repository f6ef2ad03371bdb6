"""Search: Hypothesis looks for problems on which one kernel in one dtype breaks a law."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase, Verbosity

from flashcheck.case import Case
from flashcheck.inputs import Inputs
from flashcheck.large import large
from flashcheck.law import Law, Subject
from flashcheck.openings import endings, openings
from flashcheck.problem import Problem
from flashcheck.strategies import problems
from flashcheck.verdict import Check, Verdict

LAWS_PER_PROBLEM = 3
"""Agreement, and the two laws that lag behind most: one oracle value serves them all."""

ENOUGH_FAILURES = 40
"""Failing checks after which a dtype is not searched further."""

ENOUGH_LOSSES = 2
"""Processes lost to crashes or timeouts after which a dtype is not searched further."""

LOST = "lost processes"
"""Why a search stopped that lost too many."""

MANY = 150
"""Problems among which a law that is ever to apply would have."""

ROUND = 400
"""Problems of one Hypothesis run, at most."""

CLIMB_EVERY = 4
"""One run in so many climbs on the ratio (hypothesis.target) with its second half. More would
spend the budget on near copies of one problem."""

MIN_CHECKS = 5
"""Fewer checks of a property in a dtype prove nothing."""

MOST_ADDED = 500
"""Checks that a search makes beyond its quota, at most, to reach MIN_CHECKS."""

MOST_PASSED = 1000
"""Problems that it passes over meanwhile, at most: no law that lacks checks applies to them."""


class _Spent(BaseException):
    """Leaves a Hypothesis run: it catches every Exception as a failing test."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that failed: on `captured` tensors, of which `problem` is the outline, or on those
    that the problem makes. `regression` is the id of the kept example that it was checked for."""

    dtype: str
    problem: Problem
    config: str | None
    law: Law
    check: Check
    captured: Inputs | None = None
    regression: str = ""


class Search:
    """One kernel in one dtype.

    quota: checks to make, or None; deadline: time.monotonic() at which to stop, or None;
    large: whether to begin with problems beyond the sizes that are drawn.
    complete: whether the quota is exceeded where a law has too few checks by then, and the
    deadline up to `latest`, after the first problems for the sake of those laws alone; enough:
    failing checks after which to stop.
    After `run`, `failures`, `counts` (checks by law), `refused` (by law) and `stopped_by`
    say what came of it; regressions are among the failures alone.
    """

    def __init__(
        self,
        subject: Subject,
        laws: Sequence[Law],
        *,
        quota: int | None,
        deadline: float | None,
        complete: bool = False,
        latest: float | None = None,
        large: bool = False,
        enough: int = ENOUGH_FAILURES,
        checked: Callable[[Problem, str | None, Check], None],
    ) -> None:
        self.subject = subject
        self.laws = laws
        self.quota = quota
        self.deadline = deadline
        self.complete = complete
        self.latest = latest
        self.large = large
        self.enough = enough
        self.checked = checked
        self.failures: list[Failure] = []
        self.counts: Counter[str] = Counter({law.name: 0 for law in laws})
        self.refused: Counter[str] = Counter()
        self._telling: Counter[str] = Counter()  # checks that were not vacuous
        self._turns: Counter[tuple[str, int]] = Counter()
        self.problems = 0
        self.vacuous = 0
        self.stopped_by = ""
        self._losses = 0
        self._passed = 0
        self._first = 0
        self._begun = False
        self._configs = subject.target.configs

    def run(self, seed: int) -> None:
        """Search until the quota or the time is used up. `seed` determines every problem."""
        # So that an opening meets another configuration in another run.
        self._first = seed
        try:
            space = self.subject.space
            # Most are plain calls, which not every kernel takes.
            for problem in filter(space.takes, openings(space, seed)):
                self._one(problem)
            for problem in filter(space.takes, endings(space, seed)):
                for config in self._configs:
                    self._one(problem, config)
            # A kernel that is wrong already is explained by something smaller.
            if self.large and not self.failures:
                for problem in large(space, seed):
                    self._one(problem)
        except _Spent:
            return
        self._begun = True  # what a search begins with is judged in full, whatever it takes
        for turn in range(1 << 20):
            if self._spent():
                return
            before = self.problems
            try:
                self._hypothesis(seed + 1_000_003 * turn, climb=turn % CLIMB_EVERY == 3)
            except _Spent:
                return
            if self.problems == before:
                self.stopped_by = "every problem of the space was tried"
                return

    def _hypothesis(self, seed: int, climb: bool) -> None:
        size = ROUND
        if self.quota is not None:
            size = max(10, min(ROUND, self.quota // LAWS_PER_PROBLEM // CLIMB_EVERY + 1))
        phases = (Phase.generate, Phase.target) if climb else (Phase.generate,)

        # Every field is set, since Hypothesis changes its defaults in CI.
        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=size,
            phases=phases,
            database=None,
            deadline=None,
            derandomize=False,
            print_blob=False,
            report_multiple_bugs=False,
            verbosity=Verbosity.quiet,
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(problems(self.subject.space))
        def one(problem: Problem) -> None:
            self._one(problem)

        one()

    def _one(self, problem: Problem, config: str | None = None) -> None:
        if self._spent():
            raise _Spent
        if config is None:
            config = self._configs[(self._first + self.problems) % len(self._configs)]
        self.problems += 1
        case = self.subject.case(problem, config)
        chosen = self._choose(case)
        if not chosen:
            self._passed += 1
            return
        case.start()
        for check in self.judge(case, chosen):
            self.checked(problem, config, check)
            if check.property == "agreement" and hypothesis.currently_in_test_context():
                hypothesis.target(min(check.ratio, 1e3), label="ratio")

    def judge(self, case: Case, chosen: Sequence[Law], regression: str = "") -> Iterator[Check]:
        """Judge a case by each of the laws, until the kernel refuses it or crashes.

        A `regression` is not counted: however many are kept, the budget is for what is
        generated, and what a run proves is up to that.
        """
        for law in chosen:
            check = law.check(case)
            if check.verdict is Verdict.UNSUPPORTED:
                self.refused[law.name] += not regression
                yield check
                if law is self.laws[0]:
                    return
                continue
            self.counts[law.name] += not regression
            self.vacuous += check.verdict is Verdict.VACUOUS and not regression
            self._telling[law.name] += check.verdict is not Verdict.VACUOUS and not regression
            if check.failed:
                self.failures.append(
                    Failure(
                        case.problem.dtype, case.problem, case.config, law, check, case.captured,
                        regression,
                    )
                )  # fmt: skip
            yield check
            if check.verdict in (Verdict.CRASH, Verdict.TIMEOUT):
                self._losses += check.symptom in ("timeout", "process died")
                return

    @property
    def lost(self) -> bool:
        """Whether too many processes were lost to go on."""
        return self._losses >= ENOUGH_LOSSES

    def _choose(self, case: Case) -> list[Law]:
        """The first law (agreement), then those that apply whose turn it is; or those that lack
        checks, where the budget is used up: none where no such law applies.

        A law has turns of its own in packed batches and in paged caches: what is wrong there
        may show by that law alone.
        """
        first, *others = self.laws
        chosen = [first]
        if self._begun and self.complete and self._over(time.monotonic()):
            thin = self.thin()
            lacking = [law for law in others if law.name in thin and law.applies(case)]
            return chosen + lacking if lacking or first.name in thin else []
        most = LAWS_PER_PROBLEM
        if self.quota is not None and not self.complete:
            most = min(most, self.quota - self.counts.total())
        # What a kernel keeps refusing comes last, or nothing else would have its turn.
        form = bool(case.problem.seqlens_k) + bool(case.problem.page)
        for law in sorted(others, key=lambda law: (self._turns[law.name, form] + 1) / law.weight):
            if len(chosen) >= most:
                break
            if law.applies(case):
                chosen.append(law)
                self._turns[law.name, form] += 1
        return chosen

    def _spent(self) -> bool:
        if self.quota is not None and self._enough(self.quota):
            self.stopped_by = "checks"
        elif self.deadline is not None and self._late(time.monotonic(), self.deadline):
            self.stopped_by = "time"
        elif len(self.failures) >= self.enough:
            self.stopped_by = "failures"
        elif self.lost:
            self.stopped_by = LOST
        elif self.refused[self.laws[0].name] >= max(MANY, self.quota or 0):
            self.stopped_by = "refusals"
        return bool(self.stopped_by)

    def _over(self, now: float) -> bool:
        """Whether the quota or the time is used up."""
        made = self.quota is not None and self.counts.total() >= self.quota
        return made or (self.deadline is not None and now >= self.deadline)

    def _enough(self, quota: int) -> bool:
        added = self.counts.total() - quota
        most = added >= MOST_ADDED or self._passed >= MOST_PASSED
        return added >= 0 and (most or not (self.complete and self.thin()))

    def _late(self, now: float, deadline: float) -> bool:
        if now < deadline:
            return False
        most = now >= (self.latest or deadline) or self._passed >= MOST_PASSED
        return most or not (self.complete and self.thin())

    def thin(self) -> tuple[str, ...]:
        """Laws with too few checks to prove anything, where the dtype allows them at all.

        None where the search stopped because the kernel is wrong.
        """
        if self.failures:
            return ()
        absent = self.absent()
        return tuple(
            law.name
            for law in self.laws
            if self._telling[law.name] < MIN_CHECKS
            and self.refused[law.name] < MIN_CHECKS
            and law.possible(self.subject)
            and law.name not in absent
        )

    def absent(self) -> tuple[str, ...]:
        """Laws that are about nothing in all the problems that the kernel took, or that were
        passed over since no law that lacked checks applied."""
        judged = self.counts[self.laws[0].name]
        if not judged or judged + self._passed < MANY:
            return ()
        return tuple(
            law.name
            for law in self.laws[1:]
            if not self.counts[law.name]
            and not self.refused[law.name]
            and law.possible(self.subject)
        )
