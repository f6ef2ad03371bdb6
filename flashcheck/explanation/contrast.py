"""Contrast: which neighbours of a failing problem pass, measured by running them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from flashcheck.call import Call, Reply
from flashcheck.case import Runner
from flashcheck.explanation.phrases import join
from flashcheck.fills import Fill
from flashcheck.inputs import DESCALES
from flashcheck.law import Law, Subject
from flashcheck.problem import Problem
from flashcheck.sequences import (
    fewest_slots,
    lengths,
    plain,
    sequence_of,
    with_length,
    with_lengths,
)
from flashcheck.simpler import in_dtype
from flashcheck.verdict import Check, Verdict

MAX_RUNS = 40
MAX_SECONDS = 20.0
MAX_LINES = 5

NOT_REPRODUCIBLE = "the result is not reproducible"

Outcome = bool | None
"""Whether a neighbour fails; None where that cannot be said."""


class _Spent(Exception):
    """The runs or the seconds are used up."""


class _Limited:
    """A runner that refuses to start more than a number of runs."""

    def __init__(self, runner: Runner, budget: _Budget) -> None:
        self.runner = runner
        self.budget = budget

    def submit(self, call: Call) -> None:
        self.budget.take(call.times)
        self.runner.submit(call)

    def result(self) -> Reply:
        return self.runner.result()


class _Budget:
    def __init__(self, runs: int, seconds: float) -> None:
        self.runs = runs
        self.deadline = time.monotonic() + seconds

    def take(self, runs: int) -> None:
        if self.runs < runs or time.monotonic() > self.deadline:
            raise _Spent
        self.runs -= runs


class _Neighbours:
    """Runs neighbours of one problem, each once.

    sequence: that of the worst element, in which lengths are changed.
    """

    def __init__(
        self, subject: Subject, law: Law, problem: Problem, config: str | None, check: Check | None
    ) -> None:
        self.budget = _Budget(MAX_RUNS, MAX_SECONDS)
        self.subject = subject
        self.law = law
        self.problem = problem
        self.config = config
        self.sequence = 0
        if check is not None and check.worst is not None and check.worst.output in ("out", "lse"):
            batch, _, query, *_ = check.worst.index
            self.sequence = sequence_of(problem, batch, query)

    def fails(
        self, problem: Problem, config: str | None = None, subject: Subject | None = None
    ) -> Outcome:
        check = self.check(problem, config, subject)
        if check is None or check.verdict in (Verdict.UNSUPPORTED, Verdict.VACUOUS):
            return None
        return check.failed

    def check(
        self, problem: Problem, config: str | None = None, subject: Subject | None = None
    ) -> Check | None:
        """None where the law says nothing about the problem, or the budget is spent."""
        subject = subject or self.subject
        if self.subject.space.takes(self.problem) and not subject.space.takes(problem):
            return None
        limited = replace(subject, runner=_Limited(subject.runner, self.budget))
        case = limited.case(problem, config or self.config)
        if not self.law.applies(case):
            return None
        try:
            return self.law.check(case)
        except _Spent:
            return None


def contrast(
    subject: Subject,
    law: Law,
    problem: Problem,
    config: str | None,
    check: Check | None = None,
    *,
    other_dtypes: Mapping[str, Subject] | None = None,
) -> tuple[str, ...]:
    """The most telling lines about neighbours, at most five: what passes comes first.

    `other_dtypes` are subjects of the same kernel in its other dtypes. `check` is the failure
    itself, to tell whether a second run fails in the same way.
    """
    n = _Neighbours(subject, law, problem, config, check)
    again = _again(n, check)
    timeout = check is not None and check.verdict is Verdict.TIMEOUT
    if timeout or (again is not None and again.endswith(NOT_REPRODUCIBLE)):
        # Neighbours would take as long, or say nothing.
        return tuple(line for line in (again,) if line)
    found = [
        _keys(n),
        _options(n),
        _configs(n),
        _dtypes(n, other_dtypes or {}),
        again,
        _queries(n),
        _inputs(n),
        _head_sizes(n),
    ]
    return tuple(line for line in found if line)[:MAX_LINES]


def _again(n: _Neighbours, check: Check | None) -> str | None:
    second = n.check(n.problem)
    if second is None:
        return None
    if not second.failed:
        return f"passes on a second run: {NOT_REPRODUCIBLE}"
    # By their text: a NaN does not equal itself.
    if check is not None and repr((second.symptom, second.worst)) != repr(
        (check.symptom, check.worst)
    ):
        return f"fails with other numbers on a second run: {NOT_REPRODUCIBLE}"
    return "fails the same on a second run"


def _keys(n: _Neighbours) -> str | None:
    p = n.problem

    def at(count: int) -> Outcome:
        other = with_length(p, n.sequence, keys=count)
        changes: dict[str, Any] = {}
        for name in ("k", "v"):  # what was at the last key stays at the last key
            fill: Fill = getattr(p, name)
            if p.len_k > 1 and fill.at == p.len_k - 1 and fill.pattern in ("spike", "step"):
                changes[name] = replace(fill, at=-1)
        return n.fails(replace(other, **changes))

    line = _lengths(n, lengths(p)[n.sequence][1], at, "key", "keys", (1, 3, 7, 15, 31))
    return line and _of_sequence(n) + line


def _queries(n: _Neighbours) -> str | None:
    p = n.problem

    def at(count: int) -> Outcome:
        return n.fails(with_length(p, n.sequence, queries=count))

    line = _lengths(n, lengths(p)[n.sequence][0], at, "query", "queries", (1, 3))
    # On a cache every sequence has as many.
    return line and ("" if p.page else _of_sequence(n)) + line


def _of_sequence(n: _Neighbours) -> str:
    return f"sequence {n.sequence}: " if len(lengths(n.problem)) > 1 else ""


def _lengths(
    n: _Neighbours,
    here: int,
    fails: Callable[[int], Outcome],
    one: str,
    many: str,
    steps: tuple[int, ...],
) -> str | None:
    """The line about one length; None where every length fails, nothing is known, or it is not
    the length that makes the difference."""
    seen: dict[int, Outcome] = {here: True}
    if here > 1:
        seen[here - 1] = fails(here - 1)
    for step in steps:
        seen[here + step] = fails(here + step)
        if seen[here + step] is False:
            _bisect(seen, fails)
            break
    passing = sorted(length for length, outcome in seen.items() if outcome is False)
    failing = sorted(length for length, outcome in seen.items() if outcome)
    if not passing or (failing == [here] and _by_chance(n)):
        return None
    return f"passes with {_numbers(passing, one, many)}; fails with {_numbers(failing, one, many)}"


def _by_chance(n: _Neighbours) -> bool:
    """Whether other noise of the same sizes passes too."""
    noisy = any(fill.noise != "none" for fill in (n.problem.q, n.problem.k, n.problem.v))
    others = (replace(n.problem, seed=n.problem.seed + i) for i in (1, 2))
    return noisy and any(n.fails(other) is False for other in others)


def _bisect(seen: dict[int, Outcome], fails: Callable[[int], Outcome]) -> None:
    """Find where failing ends above: between the longest that fails and the one that passes."""
    high = max(seen)
    low = max(length for length, outcome in seen.items() if outcome)
    while high - low > 1:
        middle = (low + high) // 2
        seen[middle] = fails(middle)
        if seen[middle] is None:
            return
        if seen[middle]:
            low = middle
        else:
            high = middle


def _numbers(values: list[int], one: str, many: str) -> str:
    return f"{join([str(v) for v in values])} {one if values == [1] else many}"


def _options(n: _Neighbours) -> str | None:
    """What passes once one option, or one dimension, is left out."""
    p = n.problem
    tries: list[tuple[str, Problem]] = []
    if p.is_causal:
        tries.append(("without is_causal", replace(p, is_causal=False)))
    if p.mask is not None:
        tries.append(("without the mask", replace(p, mask=None)))
    if p.enable_gqa:
        tries.append(("with as many query heads as key heads", replace(p, heads=p.kv_heads)))
    if p.scale is not None:
        other = None if n.subject.space.scale_none else 1.0
        tries.append(
            ("with the default scale" if other is None else "with scale 1", replace(p, scale=other))
        )
    if p.window != (-1, -1):
        tries.append(("without a window", replace(p, window=(-1, -1))))
    if p.softcap:
        tries.append(("without softcap", replace(p, softcap=0.0)))
    if p.alibi_slopes is not None:
        tries.append(("without alibi_slopes", replace(p, alibi_slopes=None)))
    if p.sinks is not None:
        tries.append(("without sinks", replace(p, sinks=None)))
    for name in DESCALES:
        if getattr(p, name) is not None:
            none: dict[str, Any] = {name: None}
            tries.append((f"without {name}", replace(p, **none)))
    if p.num_splits > 1:
        tries.append(("with 1 split", replace(p, num_splits=1)))
    if p.layout != "contiguous":
        tries.append(("with contiguous tensors", replace(p, layout="contiguous")))
    tries += _sequences(n)
    if p.batch > 1 and not p.page:
        tries.append(("with batch 1", replace(p, batch=1)))
    if p.heads > 1 and not p.enable_gqa:
        tries.append(("with 1 head", replace(p, heads=1, kv_heads=1)))
    return _which(n, tries)


def _sequences(n: _Neighbours) -> list[tuple[str, Problem]]:
    """A sequence alone, as a call without sequences, and without what is left over."""
    p = n.problem
    if not p.seqlens_k:
        return []
    each = lengths(p)
    alone, tries = each[n.sequence], []
    if alone[0]:
        name = f"sequence {n.sequence}" if len(each) > 1 else "the sequence"
        if len(each) > 1:
            tries.append((f"with {name} alone", with_lengths(p, [alone])))
        form = "cu_seqlens" if p.packed else "pages"
        tries.append((f"with {name} as a plain call (without {form})", plain(p, n.sequence)))
    if p.page and fewest_slots(p) < p.len_k:
        tries.append(("with no more pages than are used", replace(p, len_k=fewest_slots(p))))
    if p.longest != (0, 0):
        tries.append(("with max_seqlen of the longest sequence", replace(p, longest=(0, 0))))
    if p.shared:
        tries.append(("without shared pages", replace(p, shared=0)))
    if p.spare:
        tries.append(("without unused pages", replace(p, spare=0)))
    return tries


def _inputs(n: _Neighbours) -> str | None:
    p = n.problem
    tries = []
    if p.q != Fill() and p.k != Fill():
        tries.append(("when every score is 0 (q = 0)", replace(p, q=Fill())))
    if p.v not in (Fill(), Fill(level=1.0)):
        tries.append(("with v = 1 everywhere", replace(p, v=Fill(level=1.0))))
    return _which(n, tries)


def _which(n: _Neighbours, tries: list[tuple[str, Problem]]) -> str | None:
    outcomes = [(text, n.fails(other)) for text, other in tries]
    passing = [text for text, fails in outcomes if fails is False]
    failing = [text for text, fails in outcomes if fails]
    if not passing:
        return None
    text = f"passes {join(passing, 'or')}"
    return f"{text}; fails also {join(failing)}" if failing else text


def _configs(n: _Neighbours) -> str | None:
    names = [c for c in n.subject.target.configs if c is not None and c != n.config][:6]
    outcomes = {name: n.fails(n.problem, name) for name in names}
    passing = [name for name, fails in outcomes.items() if fails is False]
    failing = [name for name, fails in outcomes.items() if fails]
    if not passing:
        return "fails with every other config too" if failing else None
    text = f"passes with config {join(passing)}"
    return f"{text}; fails with {join([*([n.config] if n.config else []), *failing])}"


def _dtypes(n: _Neighbours, others: Mapping[str, Subject]) -> str | None:
    outcomes = {
        dtype: n.fails(in_dtype(n.problem, dtype), subject=subject)
        for dtype, subject in others.items()
        if dtype != n.problem.dtype
    }
    passing = [dtype for dtype, fails in outcomes.items() if fails is False]
    failing = [dtype for dtype, fails in outcomes.items() if fails]
    if not passing:
        return f"fails in {join(failing)} too" if failing else None
    text = f"passes in {join(passing)}"
    return f"{text}; fails in {join([n.problem.dtype, *failing])}"


def _head_sizes(n: _Neighbours) -> str | None:
    p, space = n.problem, n.subject.space
    sizes = sorted(set(space.head_dims) - {p.dim})
    near = [d for d in sizes if d < p.dim][-1:] + [d for d in sizes if d > p.dim][:1]
    tries = [
        (f"with head size {d}", replace(p, dim=d, dim_v=d if p.dim_v == p.dim else p.dim_v))
        for d in near
    ]
    return _which(n, tries)
