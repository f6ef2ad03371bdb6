"""Causes: failing checks grouped by what is behind them, the first of each shrunk.

A shrunk problem keeps only the features that its failure needs. A failure whose problem
lacks one of them has another cause; so has one that looks different (NaN, a wrong value, a
crash). Everything else is counted with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flashcheck.law import Law, Subject
from flashcheck.problem import Problem, elements
from flashcheck.search import Failure
from flashcheck.shrink import MAX_RUNS, MAX_SECONDS, shrink
from flashcheck.verdict import Check

MAX_CAUSES = 10
TOTAL_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: the shrunk problem with its check, and who else failed by it."""

    dtype: str
    problem: Problem
    config: str | None
    law: Law
    check: Check
    found: Problem
    count: int
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]


def causes(
    failures: Sequence[Failure],
    subjects: Mapping[str, Subject],
    agreement: Law,
    max_runs: int | None = None,
) -> Iterator[Cause]:
    """Shrink one failure of each cause, the smallest first, each in at most `max_runs` runs."""
    order = {dtype: i for i, dtype in enumerate(subjects)}
    left = sorted(
        failures, key=lambda f: (f.law != agreement, order[f.dtype], elements(f.problem))
    )
    stop = time.monotonic() + TOTAL_SECONDS
    for _ in range(MAX_CAUSES):
        if not left:
            return
        first = left[0]
        subject = subjects[first.dtype]
        law, check = _witness(first, subject, agreement)
        symptom = check.symptom

        def fails(
            problem: Problem,
            subject: Subject = subject,
            law: Law = law,
            symptom: str = symptom,
            config: str | None = first.config,
        ) -> bool:
            case = subject.case(problem, config)
            if not law.applies(case):
                return False
            found = law.check(case)
            return found.failed and found.symptom == symptom

        seconds = max(1.0, min(MAX_SECONDS, stop - time.monotonic()))
        # A process that dies or hangs costs seconds a run.
        runs = 12 if symptom in ("timeout", "process died") else MAX_RUNS
        runs = runs if max_runs is None else max_runs
        problem = shrink(
            first.problem, fails, subject.space, max_runs=runs, max_seconds=seconds
        )
        final = law.check(subject.case(problem, first.config))
        if not final.failed:
            # It does not fail again: keep what was seen.
            problem, final = first.problem, check
        needs = features(problem)
        dtypes = {first.dtype} | {
            dtype
            for dtype in {f.dtype for f in left} - {first.dtype}
            if fails(replace(problem, dtype=dtype), subjects[dtype])
        }
        same = [f for f in left if _looks(f.check) == _looks(first.check) and f.dtype in dtypes]
        same = [f for f in same if f is first or needs <= features(f.problem)]
        left = [f for f in left if f not in same]
        yield Cause(
            dtype=first.dtype,
            problem=problem,
            config=first.config,
            law=law,
            check=final,
            found=first.problem,
            count=len(same),
            properties=tuple(dict.fromkeys(f.law.name for f in same)),
            dtypes=tuple(dict.fromkeys(f.dtype for f in same)),
        )


def _witness(failure: Failure, subject: Subject, agreement: Law) -> tuple[Law, Check]:
    """Agreement, where it fails on the same problem too: it says most. Else the law itself."""
    if failure.law != agreement:
        check = agreement.check(subject.case(failure.problem, failure.config))
        if check.failed and _looks(check) == _looks(failure.check):
            return agreement, check
    return failure.law, failure.check


def _looks(check: Check) -> str:
    return f"{check.verdict} {check.symptom}"


def features(p: Problem) -> frozenset[str]:
    """What a problem has beyond the plainest one, by name."""
    found = set()
    if p.is_causal:
        found.add("is_causal")
    if p.mask is not None:
        found.add("attn_mask")
        found.add(f"{p.mask.kind} mask")
    if p.enable_gqa:
        found.add("enable_gqa")
    if p.scale is not None and p.scale <= 0:
        found.add("scale <= 0")
    if p.layout != "contiguous":
        found.add("layout")
    if p.batch > 1:
        found.add("batch")
    if p.heads > 1:
        found.add("heads")
    if p.len_k == 0:
        found.add("no keys")
    if p.dim_v != p.dim and p.dim_v != 1:
        found.add("Dv != D")
    return frozenset(found)
