"""Outcome: what became of a mutant: killed by a check, or not, and how it differs then.

A mutant lives in a process that is forked for it, which imports the edited text: it costs no
start of Python and torch. An alarm ends one that hangs, even inside a C function.
"""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import BinaryIO, Literal

from flashcheck import interpreter
from flashcheck.call import Reply
from flashcheck.kernel import TargetError
from flashcheck.law import Subject
from flashcheck.mutation.mutant import Mutant
from flashcheck.mutation.override import override
from flashcheck.mutation.plan import Plan, digest, ratio, reply_of, searched
from flashcheck.sentence import describe
from flashcheck.worker import InProcess

Fate = Literal["killed", "survived", "invalid"]

CRASH, TIMEOUT, REFUSED = "CRASH", "TIMEOUT", "REFUSED"


@dataclass(frozen=True, slots=True)
class Difference:
    """How a survivor's results differ from the kernel's on problems that are compared bit by bit.

    compared, differing, refused: problems; ratio: error / bound where it has grown most, clean:
    the kernel's own there; on: that problem, in words.
    """

    compared: int = 0
    differing: int = 0
    refused: int = 0
    ratio: float = 0.0
    clean: float = 0.0
    on: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """fate: an invalid mutant cannot be loaded, and does not count.

    property, verdict, dtype: of the check that killed; no property where the process ended
    or hung, or took nothing. problems, checks: made until then.
    """

    mutant: Mutant
    fate: Fate
    property: str = ""
    verdict: str = ""
    dtype: str = ""
    problems: int = 0
    checks: int = 0
    difference: Difference = field(default_factory=Difference)


MANY = 12
"""Problems of which none is taken where a dtype is refused."""


class _Timed(InProcess):
    """A kernel in this process, which a call that takes too long ends."""

    def __init__(self, spec: str, device: str | None, timeout: float, loading: float) -> None:
        super().__init__(spec, device)
        self.timeout = timeout
        self.first = loading

    def result(self) -> Reply:
        signal.setitimer(signal.ITIMER_REAL, max(self.timeout, self.first))
        try:
            return super().result()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.first = 0.0


def outcome(plan: Plan, mutant: Mutant) -> Outcome:
    """Search a mutant until the first check that fails, in one dtype after another.

    One that takes nothing that the kernel takes is killed: a gate has nothing to run then.
    A survivor is compared with the kernel.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(plan, mutant, writing)
    os.close(writing)
    # What the child makes of it becomes known step by step: the last counts.
    last = Outcome(mutant, "invalid")
    ended = False
    with os.fdopen(reading, "rb") as pipe:
        while not ended:
            try:
                last = pickle.load(pipe)
            except (EOFError, pickle.UnpicklingError):
                break
            ended = pipe.peek(1)[:1] == b""
    _, status = os.waitpid(pid, 0)
    if status == 0:
        return last
    if last.fate == "survived":  # and died while it was compared
        d = last.difference
        return replace(
            last, difference=replace(d, differing=d.differing + 1, ratio=float("inf"))
        )  # fmt: skip
    if last.fate == "killed" and not last.verdict:
        hung = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
        return replace(last, verdict=TIMEOUT if hung else CRASH)
    return last


def _child(plan: Plan, mutant: Mutant, writing: int) -> None:
    """Never returns."""
    code = 1
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.environ.update(interpreter.environment(plan.device))
        with os.fdopen(writing, "wb") as pipe:
            _live(plan, mutant, lambda found: _send(found, pipe))
        code = 0
    finally:
        # Without the interpreter's farewell: a user's threads and atexit hooks may hang.
        os._exit(code)


def _send(found: Outcome, pipe: BinaryIO) -> None:
    pickle.dump(found, pipe)
    pipe.flush()


def _live(plan: Plan, mutant: Mutant, say: Callable[[Outcome], None]) -> None:
    override(plan.file, mutant.text)
    spec = plan.target.spec
    runner = _Timed(spec, plan.device, plan.timeout, plan.loading)
    signal.setitimer(signal.ITIMER_REAL, plan.loading)
    try:
        runner.start()
    except TargetError:
        say(Outcome(mutant, "invalid"))
        return
    signal.setitimer(signal.ITIMER_REAL, 0)
    problems = checks = 0
    subjects = {
        dtype: Subject(runner, plan.target, space, runner.device)
        for dtype, space in plan.spaces.items()
        if not _refused(plan, Subject(runner, plan.target, space, runner.device))
    }
    for dtype, subject in subjects.items():
        # Where nothing follows, the process has ended.
        say(Outcome(mutant, "killed", dtype=dtype, problems=problems, checks=checks))
        search = searched(subject, plan.checks, plan.seed, plan.seconds)
        problems, checks = problems + search.problems, checks + search.counts.total()
        if search.failures:
            check = search.failures[0].check
            verdict = str(check.verdict)
            say(Outcome(mutant, "killed", check.property, verdict, dtype, problems, checks))
            return
    if not checks:
        say(Outcome(mutant, "killed", verdict=REFUSED, problems=problems))
        return
    found = Difference()
    say(Outcome(mutant, "survived", problems=problems, checks=checks))
    for dtype, space in plan.spaces.items():
        subject = Subject(runner, plan.target, space, runner.device)
        found = _compare(plan, subject, dtype, found)
    say(Outcome(mutant, "survived", problems=problems, checks=checks, difference=found))


def _refused(plan: Plan, subject: Subject) -> bool:
    """Whether it takes none of some problems that the kernel takes: a search would not end."""
    some = [known for known in plan.clean[subject.space.dtype] if known.taken][:MANY]
    return all(
        reply_of(subject.case(known.problem, known.config)).status == "unsupported"
        for known in some
    )


def _compare(plan: Plan, subject: Subject, dtype: str, found: Difference) -> Difference:
    for known in plan.clean[dtype]:
        found = replace(found, compared=found.compared + 1)
        case = subject.case(known.problem, known.config)
        reply = reply_of(case)
        if digest(reply) == known.digest:
            continue
        found = replace(found, differing=found.differing + 1)
        if reply.status == "unsupported":
            found = replace(found, refused=found.refused + 1)
        now = ratio(case)
        if not found.on or _grows(now, known.ratio) > _grows(found.ratio, found.clean):
            words = describe(known.problem)
            found = replace(found, ratio=now, clean=known.ratio, on=words)
    return found


def _grows(ratio: float, clean: float) -> float:
    """By how much an edit has enlarged the error; beyond the bound, the error itself."""
    return ratio if ratio > 1 else ratio - clean
