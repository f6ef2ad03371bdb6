"""Causes: failing checks grouped by what is behind them, the first of each shrunk.

A shrunk problem keeps only the features that its failure needs, besides those that shrinking
brought in. A failure whose problem lacks one that is needed has another cause; so has one that
looks different (NaN, a wrong value, a crash). Everything else is counted with it. Wrong results
that do not come again have one cause, since no feature of a problem tells why; so have errors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flashcheck import defect, reduction, simpler
from flashcheck.inputs import Inputs
from flashcheck.law import Law, Subject
from flashcheck.problem import Problem, elements
from flashcheck.reduction import reduce_captured
from flashcheck.search import Failure
from flashcheck.sentence import describe
from flashcheck.shrink import MAX_RUNS, MAX_SECONDS, shrink
from flashcheck.simpler import in_dtype
from flashcheck.verdict import Check, Verdict

MAX_CAUSES = 10
TOTAL_SECONDS = 120.0
CANDIDATES = 6
"""Failures among which the clearest is chosen."""


APART = "Dv != D"


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause: the shrunk problem with its check, and who else failed by it.

    captured, regression: as in `Failure`; the tensors are reduced. unshrunk: what flashcheck
    itself failed to do, so that the problem is as it was found or others are not counted, else "".
    """

    dtype: str
    problem: Problem
    config: str | None
    law: Law
    check: Check
    found: Problem
    count: int
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]
    captured: Inputs | None = None
    regression: str = ""
    unshrunk: str = ""


def causes(
    failures: Sequence[Failure],
    subjects: Mapping[str, Subject],
    agreement: Law,
    max_runs: int | None = None,
) -> Iterator[Cause]:
    """Shrink one failure of each cause, the smallest first, each in at most `max_runs` runs.

    Captured tensors, which shrink less far, come last: a recipe that fails alike and needs
    nothing that they lack explains them too.
    """
    left = sorted(failures, key=lambda f: (f.law != agreement, elements(f.problem)))
    stop = time.monotonic() + TOTAL_SECONDS
    told: set[tuple[str, str]] = set()
    if any(f.check.verdict is Verdict.NONDETERMINISTIC for f in left):
        # Two equal calls differ: that comes first, and explains every law about equal bits.
        left = [f for f in left if not f.law.name.startswith("poison_")]
        left.sort(key=lambda f: f.check.verdict is not Verdict.NONDETERMINISTIC)
    for _ in range(MAX_CAUSES):
        if not left:
            return
        recipes = [f for f in left if f.captured is None]
        if not recipes:
            same = [f for f in left if _looks(f.check) == _looks(left[0].check)]
            left = [f for f in left if f not in same]
            yield _captured(same, subjects, stop, max_runs)
            continue
        unshrunk, again, apart = "", True, True
        try:
            trial = _clearest(recipes, subjects, agreement)
            problem, final, again = _shrunk(trial, stop, max_runs)
            if max_runs != 0 and final.verdict in COMPARED and time.monotonic() < stop:
                apart = _needs_apart(trial, problem)
        except Exception as error:
            trial = _as_found(recipes[0], subjects)
            problem, final = trial.failure.problem, trial.check
            unshrunk = defect.told("find a smaller problem", error)
        config = trial.config
        # A head size that shrank apart from that of V is no need.
        needs = features(problem) & features(trial.failure.problem)
        if not apart:
            needs -= {APART}
        same = [f for f in left if _looks(f.check) == _looks(trial.failure.check)]
        same = [
            f
            for f in same
            if f is trial.failure or (f.dtype in trial.dtypes and (needs <= features(f.problem)))
        ]
        if not again and max_runs != 0:
            alike = [f for f in left if f not in same and _alike(f.check, trial.check)]
            try:
                same += [f for f in alike if not _comes_again(f, subjects, stop)]
            except Exception as error:
                unshrunk = defect.told("tell whether other failures come again", error)
        left = [f for f in left if f not in same]
        # Problems that differ in what nobody is shown are one.
        name = describe(problem), trial.law.name
        if name in told:
            continue
        told.add(name)
        yield Cause(
            dtype=problem.dtype,
            problem=problem,
            config=config,
            law=trial.law,
            check=final,
            found=trial.failure.problem,
            count=len(same),
            properties=tuple(dict.fromkeys(f.law.name for f in same)),
            dtypes=tuple(dict.fromkeys(f.dtype for f in same)),
            regression=trial.failure.regression,
            unshrunk=unshrunk,
        )


def _shrunk(trial: _Trial, stop: float, max_runs: int | None) -> tuple[Problem, Check, bool]:
    """The smallest problem found that fails like the trial's, how, and whether it came again."""
    seconds = max(1.0, min(MAX_SECONDS, stop - time.monotonic()))
    # A process that dies or hangs costs seconds a run.
    runs = {"timeout": 3, "process died": 6}.get(trial.check.symptom, MAX_RUNS)
    subject = trial.subjects[trial.dtype]
    problem = shrink(
        in_dtype(trial.failure.problem, trial.dtype),
        trial.fails,
        subject.space,
        max_runs=runs if max_runs is None else max_runs,
        max_seconds=seconds,
    )
    final = trial.law.check(subject.case(problem, trial.config))
    if final.failed:
        return problem, final, final.verdict is not Verdict.NONDETERMINISTIC
    # It does not fail again: keep what was seen.
    return trial.failure.problem, trial.check, False


def _needs_apart(trial: _Trial, problem: Problem) -> bool:
    """Whether a shrunk failure needs a D that is not Dv: sizes shrink one by one."""
    if problem.dim == problem.dim_v:
        return True
    same = simpler.follow(problem, replace(problem, dim=problem.dim_v))
    return not (trial.subjects[trial.dtype].space.takes(same) and trial.fails(same))


AGAIN = 2
"""Checks that a failure has to fail to have come again."""

COMPARED = (Verdict.VIOLATION, Verdict.NONDETERMINISTIC)
"""What is said of results."""


def _alike(a: Check, b: Check) -> bool:
    """Whether two failures are of results, or the same error: none that costs a process."""
    if a.verdict in COMPARED:
        return b.verdict in COMPARED
    return a.symptom.startswith("raises ") and _looks(a) == _looks(b)


def _comes_again(failure: Failure, subjects: Mapping[str, Subject], stop: float) -> bool:
    """Whether a failure is seen AGAIN times on its own problem; also where that cannot be said."""
    if failure.captured is not None:
        return True
    subject = subjects[failure.dtype]
    cases = (subject.case(failure.problem, failure.config) for _ in range(AGAIN))
    return all(time.monotonic() > stop or failure.law.check(case).failed for case in cases)


def _as_found(failure: Failure, subjects: Mapping[str, Subject]) -> _Trial:
    return _Trial(failure, failure.law, failure.check, failure.config, subjects, (failure.dtype,))


def _captured(
    same: Sequence[Failure], subjects: Mapping[str, Subject], stop: float, max_runs: int | None
) -> Cause:
    """The cause of failures on captured tensors, those of the first cut down."""
    first = same[0]
    assert first.captured is not None
    problem, captured, check, unshrunk = first.problem, first.captured, first.check, ""
    try:
        problem, captured, check = reduce_captured(
            subjects[first.dtype], first.law, problem, captured, first.config, check,
            max_runs=reduction.MAX_RUNS if max_runs is None else max_runs,
            max_seconds=max(1.0, min(reduction.MAX_SECONDS, stop - time.monotonic())),
        )  # fmt: skip
    except Exception as error:
        unshrunk = defect.told("cut these tensors down", error)
    return Cause(
        dtype=first.dtype,
        problem=problem,
        config=first.config,
        law=first.law,
        check=check,
        found=first.problem,
        count=len(same),
        properties=tuple(dict.fromkeys(f.law.name for f in same)),
        dtypes=tuple(dict.fromkeys(f.dtype for f in same)),
        captured=captured,
        regression=first.regression,
        unshrunk=unshrunk,
    )


@dataclass(frozen=True, slots=True)
class _Trial:
    """A failure that is to be shrunk, by `law`, in every one of `dtypes` at once."""

    failure: Failure
    law: Law
    check: Check
    config: str | None
    subjects: Mapping[str, Subject]
    dtypes: tuple[str, ...]

    @property
    def dtype(self) -> str:
        return self.dtypes[0]

    def fails(self, problem: Problem) -> bool:
        """Whether a problem fails in the same way in all of the dtypes."""
        return all(_fails(self, in_dtype(problem, d), self.subjects[d]) for d in self.dtypes)


def _fails(trial: _Trial, problem: Problem, subject: Subject) -> bool:
    case = subject.case(problem, trial.config)
    if not trial.law.applies(case):
        return False
    found = trial.law.check(case)
    return found.failed and found.symptom == trial.check.symptom


def _clearest(left: Sequence[Failure], subjects: Mapping[str, Subject], agreement: Law) -> _Trial:
    """Of the smallest failures that look like the first, one that fails in the most dtypes.

    What fails in every dtype is no matter of precision, and explains the most.
    """
    first = left[0]
    alike = [f for f in left if _looks(f.check) == _looks(first.check)][:CANDIDATES]
    if first.check.symptom in ("timeout", "process died"):
        alike = alike[:1]
    best: _Trial | None = None
    for failure in alike:
        law, check = _witness(failure, subjects[failure.dtype], agreement)
        subject = subjects[failure.dtype]
        trial = _Trial(failure, law, check, failure.config, subjects, (failure.dtype,))
        for config in subject.target.configs:
            # The first configuration that fails is the plainest.
            other = replace(trial, config=config)
            if config == trial.config or _fails(other, failure.problem, subject):
                trial = other
                break
        others = [
            d
            for d in (subjects if len(alike) > 1 else ())
            if d != failure.dtype and _fails(trial, in_dtype(failure.problem, d), subjects[d])
        ]
        # float32 shows most, if it is among them.
        dtypes = sorted([failure.dtype, *others], key=lambda d: (d != "float32", d))
        trial = replace(trial, dtypes=tuple(dtypes))
        if best is None or len(trial.dtypes) > len(best.dtypes):
            best = trial
    assert best is not None
    return best


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
        if p.mask.kind == "additive":
            found.add("additive mask")
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
    if p.packed:
        found.add("cu_seqlens_q")
    if p.page:
        found.add("block_table")
    if p.dim_v != p.dim and p.dim_v != 1:
        found.add(APART)
    return frozenset(found)
