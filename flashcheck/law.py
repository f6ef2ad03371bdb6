"""Law: a property that a kernel must satisfy, driven by the gate and by pytest alike."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import assume, note

from flashcheck.call import Reply
from flashcheck.case import BadReply, Case, Runner
from flashcheck.inputs import Inputs
from flashcheck.judge import Judge
from flashcheck.kernel import Target
from flashcheck.problem import Problem
from flashcheck.sentence import describe
from flashcheck.strategies import Space, problems
from flashcheck.verdict import Check, Verdict


@dataclass(frozen=True, slots=True)
class Law:
    """A property: `judge(case, judge)` records comparisons; `applies` says where it holds.

    `statement` is one sentence for reports. `applies` looks at the case without running the
    kernel, and `about` at a kernel and its space: whether any case may have what the law is about.
    `backward` says that it is about gradients, which not every kernel has; a law gets
    checks in proportion to its `weight`. `runs` names the two runs that a law compares, the one
    that gives what it gets and the one that gives what it expects; () where what is expected is
    no result of the kernel.
    """

    name: str
    statement: str
    judge: Callable[[Case, Judge], None]
    applies: Callable[[Case], bool]
    about: Callable[[Subject], bool]
    backward: bool = False
    weight: int = 1
    runs: tuple[str, str] | tuple[()] = ()

    def check(self, case: Case) -> Check:
        """Judge one case. A kernel that gives no result fails, or is unsupported."""
        judge = Judge(self.name, self.runs)
        try:
            self.judge(case, judge)
        except BadReply as bad:
            return _bad_reply(self.name, bad.reply)
        return judge.check()

    def test(self, subject: Subject, data: Any) -> None:
        """Body of a Hypothesis test: draw a problem for `subject` and check it."""
        problem = data.draw(problems(subject.space), label="problem")
        # Hypothesis prints how a problem was drawn, which says nothing about what it is.
        note(f"Problem: {describe(problem)}")
        case = subject.case(problem)
        assume(self.applies(case))
        check = self.check(case)
        # A kernel may refuse every input that a law derives: that is no failure.
        if check.verdict is not Verdict.UNSUPPORTED:
            check.raise_if_failed()

    def possible(self, subject: Subject) -> bool:
        """Whether any problem of the subject's space may have what the law is about."""
        return (subject.space.backward or not self.backward) and self.about(subject)


def law(
    statement: str,
    *,
    applies: Callable[[Case], bool] = lambda case: True,
    about: Callable[[Subject], bool] = lambda subject: True,
    backward: bool = False,
    weight: int = 1,
    runs: tuple[str, str] | tuple[()] = (),
) -> Callable[[Callable[[Case, Judge], None]], Law]:
    """Make a law of a function `(case, judge) -> None`, named after it."""

    def where(case: Case) -> bool:
        return (not backward or case.has_gradients) and applies(case)

    def decorate(function: Callable[[Case, Judge], None]) -> Law:
        return Law(function.__name__, statement, function, where, about, backward, weight, runs)

    return decorate


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel that is ready to be checked in one dtype."""

    runner: Runner
    target: Target
    space: Space
    device: str = "cpu"

    def __repr__(self) -> str:
        return f"<{self.target.name} in {self.space.dtype} on {self.device}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints in a failing example."""
        printer.text(repr(self))

    def case(
        self, problem: Problem, config: str | None = None, inputs: Inputs | None = None
    ) -> Case:
        if config is None:
            config = self.target.configs[problem.seed % len(self.target.configs)]
        return Case(
            self.runner, self.target, problem, config, self.device, self.space, inputs
        )  # fmt: skip


@cache
def laws() -> tuple[Law, ...]:
    """Every property of flashcheck.properties, agreement first, then by name."""
    # The properties define Hypothesis tests, which inside of one, where a user may call us for
    # the first time, is an error; Hypothesis looks at the thread.
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(_import_laws).result()
    unique = {law.name: law for law in found}
    return tuple(sorted(unique.values(), key=lambda law: (law.name != "agreement", law.name)))


def law_named(name: str) -> Law | None:
    return next((law for law in laws() if law.name == name), None)


def _import_laws() -> list[Law]:
    package = importlib.import_module("flashcheck.properties")
    found: list[Law] = []
    for info in pkgutil.iter_modules(package.__path__):
        if info.ispkg or info.name.startswith("_"):
            continue
        module = importlib.import_module(f"flashcheck.properties.{info.name}")
        found += [value for value in vars(module).values() if isinstance(value, Law)]
    return found


def _bad_reply(name: str, reply: Reply) -> Check:
    if reply.status == "unsupported":
        return Check(name, Verdict.UNSUPPORTED, message=reply.message)
    verdict = Verdict.TIMEOUT if reply.status == "timeout" else Verdict.CRASH
    if reply.problem_with_output:
        return Check(
            name, Verdict.VIOLATION, float("inf"), "output form", reply.problem_with_output
        )
    symptom = {"timeout": "timeout", "died": "process died"}.get(
        reply.status, f"raises {reply.exception}"
    )
    return Check(name, verdict, float("inf"), symptom, reply.message)
