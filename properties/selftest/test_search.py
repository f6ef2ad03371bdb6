"""A search whose time is up: what it still judges, and what it must not claim to have judged."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from flashcheck.law import Law, Subject, law_named, laws
from flashcheck.openings import endings, openings
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.search import MANY, MIN_CHECKS, MOST_PASSED, Search
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess

pytestmark = [pytest.mark.cpu, pytest.mark.slow]


@dataclass
class Choosy:
    """Attention that refuses some calls, where Lq + Lk is even, or all, once it was probed."""

    refuses: str = "nothing"
    probed: bool = False

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        odd = (query.shape[2] + key.shape[2]) % 2
        if self.probed and (self.refuses == "all" or (self.refuses == "some" and not odd)):
            raise NotImplementedError(f"no call of {self.refuses} sizes")
        return torch.softmax(query @ key.mT * query.shape[3] ** -0.5, -1) @ value


@dataclass
class Late:
    """A search in float32 whose time is up before it begins."""

    kernel: Choosy
    complete: bool = True
    judged_by: tuple[Law, ...] = field(default_factory=laws)
    checks: list[tuple[Problem, str]] = field(default_factory=list)
    heard: list[Check] = field(default_factory=list)

    def __post_init__(self) -> None:
        runner = InProcess(self.kernel)
        target = runner.start()
        spaces = probe(runner, target, ("float32",)).spaces
        self.subject = Subject(runner, target, spaces["float32"])
        self.kernel.probed = True

    def run(self) -> Search:
        now = time.monotonic()
        search = Search(
            self.subject, self.judged_by, quota=None, deadline=now, latest=now + 300,
            complete=self.complete, checked=self.hear,
        )  # fmt: skip
        search.run(0)
        return search

    def hear(self, problem: Problem, config: str | None, check: Check) -> None:
        self.checks.append((problem, check.property))
        self.heard.append(check)


@pytest.mark.parametrize("complete", [True, False])
def test_time_that_is_up_waits_for_five_checks_of_each_property(complete: bool) -> None:
    """A preset proves something on a slow machine too; a budget in seconds is those seconds."""
    late = Late(Choosy(), complete)
    search = late.run()
    assert search.stopped_by == "time"
    assert bool(search.thin()) is not complete
    assert bool(late.checks) is complete


def test_beyond_the_openings_those_that_lack_checks_are_judged_alone() -> None:
    late = Late(Choosy())
    late.run()
    first = {*openings(late.subject.space, 0), *endings(late.subject.space, 0)}
    so_far: Counter[str] = Counter()
    for problem, name in late.checks:
        if problem not in first and name != "agreement":
            assert so_far[name] < MIN_CHECKS
        so_far[name] += 1
    assert any(problem not in first for problem, _ in late.checks)
    assert len(late.checks) > len(first)


def test_a_kernel_that_refuses_all_proves_nothing() -> None:
    search = Late(Choosy("all")).run()
    assert not search.counts.total()
    assert search.stopped_by == "refusals"
    assert search.thin()


def test_refused_calls_are_no_checks() -> None:
    """A law is left out for its own refusals, not for those of the problem itself."""
    late = Late(Choosy("some"))
    search = late.run()
    assert search.counts["agreement"] >= MIN_CHECKS
    assert search.refused["agreement"]
    # They are told all the same, so that a report can say what was refused.
    told = [check for check in late.heard if check.verdict is Verdict.UNSUPPORTED]
    assert len(told) == search.refused.total()
    plain = ("constant_v", "finite", "inputs_unmodified", "repeat", "equal_scores")
    assert all(search.counts[name] >= MIN_CHECKS for name in plain)


def test_a_law_that_never_comes_again_is_not_waited_for_until_the_end() -> None:
    once = law_named("repeat")
    assert once is not None
    seen: list[int] = []

    def first_time(case: object) -> bool:
        seen.append(1)
        return len(seen) == 1

    rare = Law(once.name, once.statement, once.judge, first_time, once.about)
    late = Late(Choosy(), judged_by=(laws()[0], rare))
    search = late.run()
    assert search.thin() == ("repeat",)
    assert search.problems >= MOST_PASSED
    assert search.counts["agreement"] < MANY
