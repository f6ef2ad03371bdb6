"""Plan: what every mutant of a kernel goes through, found by running the kernel as it is."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import numpy as np
import torch
from hypothesis import HealthCheck, Phase, Verbosity

from flashcheck.call import Reply
from flashcheck.case import BadReply, Case
from flashcheck.kernel import Target, TargetError
from flashcheck.law import Subject, law_named, laws
from flashcheck.mutation.source import Source
from flashcheck.openings import openings
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.search import Search
from flashcheck.strategies import Space, problems
from flashcheck.worker import Worker

COMPARED = 100
"""Problems of a dtype on which a survivor is compared with the kernel."""

COMPARED_INTERPRETED = 24
"""In Triton's interpreter, which is slow."""

LONGEST = 600.0
"""Seconds that the search of the kernel as it is may take in one dtype."""

TIMEOUT = 10.0
"""Seconds that a mutant's call may take, or a few times the kernel's own slowest call."""


@dataclass(frozen=True, slots=True)
class Clean:
    """What the kernel as it is made of a problem: `digest` of the bits, `ratio` to the bound.

    taken: it did not refuse it.
    """

    problem: Problem
    config: str | None
    digest: bytes
    ratio: float
    taken: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """checks: of a search in one dtype; timeout, loading, seconds: of a call, start, search."""

    target: Target
    file: str
    device: str | None
    spaces: dict[str, Space]
    clean: dict[str, tuple[Clean, ...]]
    checks: int
    seed: int
    timeout: float
    loading: float
    seconds: float

    @property
    def compared(self) -> int:
        return sum(map(len, self.clean.values()))


def readable(target: Target, file: str | None) -> Source:
    """The source to be mutated: `file`, or that of the kernel. Raises TargetError."""
    path = file or target.file
    if path is None:
        raise TargetError(
            f"the source of {target.spec!r} cannot be read: it is built in, compiled, or made by "
            "exec or in a shell; name a function that a .py file defines"
        )
    torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
    if os.path.abspath(path).startswith(torch_folder + os.sep):
        raise TargetError(
            f"{target.spec!r} is torch's own: most of it is compiled, and mutants of "
            f"{os.path.basename(path)} would say nothing about it"
        )
    try:
        return Source(Path(path).read_bytes(), os.path.abspath(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise TargetError(f"cannot read {path} as Python: {error}") from None


def plan(
    spec: str,
    *,
    file: str | None,
    dtypes: tuple[str, ...] | None,
    device: str | None,
    checks: int,
    seed: int,
) -> tuple[Plan, Source]:
    """Load and probe the kernel, see that the search does not fail it, and note its results.

    Raises TargetError, in one line, where that cannot be done.
    """
    start = time.monotonic()
    with Worker(spec, device) as runner:
        target = runner.start()
        source = readable(target, file)
        probed = probe(runner, target, dtypes)
        loading = time.monotonic() - start
        if not probed.spaces:
            reasons = "; ".join(f"{dtype}: {why}" for dtype, why in probed.refused)
            raise TargetError(f"{spec!r} takes no dtype: {reasons}")
        slowest = longest = 0.0
        clean: dict[str, tuple[Clean, ...]] = {}
        share = max(1, checks // len(probed.spaces))
        # float64 last, whose exact results take longest.
        spaces = dict(sorted(probed.spaces.items(), key=lambda item: item[0] == "float64"))
        for dtype, space in spaces.items():
            subject = Subject(runner, target, space, runner.device)
            began = time.monotonic()
            search = searched(subject, share, seed, LONGEST)
            longest = max(longest, time.monotonic() - began)
            if search.failures:
                check = search.failures[0].check
                raise TargetError(
                    f"{spec!r} as it is fails {check.property} ({check.verdict}) in {dtype}: put "
                    "that right first (flashcheck gate), since every mutant would be failed by it"
                )
            noted: list[Clean] = []
            count = COMPARED_INTERPRETED if target.interpreted else COMPARED
            for i, problem in enumerate(draw(space, seed, count)):
                config = target.configs[i % len(target.configs)]
                case = subject.case(problem, config)
                reply = reply_of(case)
                slowest = max(slowest, reply.seconds)
                taken = reply.status != "unsupported"
                noted.append(Clean(problem, config, digest(reply), ratio(case), taken))
            clean[dtype] = tuple(noted)
    if not any(known.taken for every in clean.values() for known in every):
        raise TargetError(f"{spec!r} refuses every problem that was drawn")
    timeout = max(TIMEOUT, 5 * slowest)
    return Plan(
        target, source.file, device, spaces, clean, share, seed, timeout,
        max(6 * timeout, 10 * loading), max(60.0, 10 * longest),
    ), source  # fmt: skip


def searched(subject: Subject, checks: int, seed: int, seconds: float) -> Search:
    """A search until the first check that fails; `seconds` end one that is refused nearly all."""
    search = Search(
        subject, laws(), quota=checks, deadline=time.monotonic() + seconds, enough=1,
        checked=lambda *_: None,
    )  # fmt: skip
    search.run(seed)
    return search


def reply_of(case: Case) -> Reply:
    """The kernel's reply on a problem, usable or not."""
    try:
        return case.run()
    except BadReply as bad:
        return bad.reply


def ratio(case: Case) -> float:
    """The error of a kernel's result over its bound."""
    agreement = law_named("agreement")
    assert agreement is not None
    return agreement.check(case).ratio


def digest(reply: Reply) -> bytes:
    """Of the bits of the results; all NaN are alike."""
    parts = [f"{reply.status} {reply.out_dtype} {bool(reply.problem_with_output)}".encode()]
    parts += [np.where(np.isnan(a), np.nan, a).tobytes() for a in (*reply.outs, *reply.lses)]
    return hashlib.sha256(b"\0".join(parts)).digest()


def draw(space: Space, seed: int, count: int) -> Sequence[Problem]:
    """Problems of a space, other than those that a search by the same seed begins with."""
    found = list(openings(space, seed + 7_654_321))[: count // 2]

    @hypothesis.seed(seed + 7_654_321)
    @hypothesis.settings(
        max_examples=count,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(problems(space))
    def one(problem: Problem) -> None:
        if len(found) < count:
            found.append(problem)

    one()
    return found
