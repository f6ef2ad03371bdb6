"""Witness: a problem on which a fault shows beyond doubt, kept for each kernel and dtype.

A fault without a witness is equivalent to the clean kernel there, or nobody has shown that it
is not: it does not count. `python -m flashcheck.power.witness [FAULT...]` searches those that
are missing.
"""

from __future__ import annotations

import builtins
import json
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import resources
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from flashcheck import fault
from flashcheck.kernel import TargetError
from flashcheck.law import Law, Subject, law_named, laws
from flashcheck.power.trial import BUDGET, spec
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.records import write_whole
from flashcheck.search import Failure, Search
from flashcheck.shrink import shrink
from flashcheck.verdict import Check
from flashcheck.worker import Worker

CLEAR = 8.0
"""How far beyond its bound a witness is."""

SEEDS = range(24)
"""Searches for a witness, each of the default budget."""


@dataclass(frozen=True, slots=True)
class Witness:
    """`fault` in `kernel`, configuration `config`, breaks `property` on `problem` by `ratio`.

    ratio is infinite for a law that holds bit for bit, a wrong NaN or a crash.
    """

    fault: str
    kernel: str
    property: str
    config: str | None
    ratio: float
    problem: Problem

    @builtins.property
    def key(self) -> tuple[str, str, str]:
        return self.fault, self.kernel, self.problem.dtype

    def line(self) -> str:
        """As JSON; an infinite ratio is null there."""
        ratio = float(f"{self.ratio:.3g}") if self.ratio < float("inf") else None
        return json.dumps(
            {
                "fault": self.fault, "kernel": self.kernel, "property": self.property,
                "config": self.config, "ratio": ratio, "problem": self.problem.to_dict(),
            }
        )  # fmt: skip

    @staticmethod
    def parse(line: str) -> Witness:
        given: dict[str, Any] = json.loads(line)
        ratio, problem = given.pop("ratio"), Problem.from_dict(given.pop("problem"))
        return Witness(
            **given, ratio=float("inf") if ratio is None else ratio, problem=problem
        )  # fmt: skip

    def check(self) -> Check:
        """Judge the broken kernel on the problem. Raises TargetError."""
        with Worker(spec(self.kernel, self.fault)) as runner:
            target = runner.start()
            space = probe(runner, target, (self.problem.dtype,)).spaces[self.problem.dtype]
            law = law_named(self.property)
            assert law is not None
            return law.check(Subject(runner, target, space).case(self.problem, self.config))


def _file() -> Path:
    return Path(str(resources.files(f"{fault.KERNELS}.faults") / "witnesses.jsonl"))


def witnesses() -> tuple[Witness, ...]:
    """All that are kept, by fault, kernel and dtype."""
    file = _file()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return tuple(map(Witness.parse, text.splitlines()))


def search(name: str, kernel: str, known: Iterable[str] = ()) -> list[Witness]:
    """Witnesses of a fault in the dtypes of a kernel that are not `known`. Raises TargetError."""
    found = []
    with Worker(spec(kernel, name)) as runner:
        target = runner.start()
        spaces = probe(runner, target, None).spaces
        for dtype, space in spaces.items():
            subject = Subject(runner, target, space)
            if dtype not in known and (witness := _of(name, kernel, subject, len(spaces))):
                found.append(witness)
    return found


def _of(name: str, kernel: str, subject: Subject, dtypes: int) -> Witness | None:
    for seed in SEEDS:
        searched = Search(
            subject, laws(), quota=BUDGET // dtypes, deadline=None, enough=1,
            checked=lambda *_: None,
        )  # fmt: skip
        searched.run(seed)
        for failure in searched.failures:
            if _clear(failure.check):
                return _smallest(name, kernel, subject, failure)
        if not searched.failures and seed > 2:
            return None
    return None


def _clear(check: Check) -> bool:
    return check.failed and check.ratio >= CLEAR


def _smallest(name: str, kernel: str, subject: Subject, failure: Failure) -> Witness:
    law: Law = failure.law

    def check(problem: Problem) -> Check:
        return law.check(subject.case(problem, failure.config))

    def fails(problem: Problem) -> bool:
        return law.applies(subject.case(problem, failure.config)) and _clear(check(problem))

    problem = shrink(failure.problem, fails, subject.space, max_runs=120, max_seconds=20)
    return Witness(name, kernel, law.name, failure.config, check(problem).ratio, problem)


def _job(known: frozenset[tuple[str, str, str]], pair: tuple[str, str]) -> list[Witness] | str:
    name, kernel = pair
    try:
        return search(name, kernel, {d for n, k, d in known if (n, k) == pair})
    except TargetError as error:
        return f"{spec(kernel, name)}: {error}"


def main(names: Sequence[str], jobs: int = 2) -> None:
    """Search the witnesses that are missing, of some faults or of all, and keep them."""
    kept = {w.key: w for w in witnesses()}
    pairs = [(n, k) for n in names or fault.names() for k in fault.read(n).edits]
    job = partial(_job, frozenset(kept))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for pair, found in zip(pairs, pool.map(job, pairs), strict=True):
            if isinstance(found, str):
                print(found, flush=True)
                continue
            kept |= {w.key: w for w in found}
            print(*pair, *(f"{w.problem.dtype}:{w.ratio:.3g}" for w in found), flush=True)
            lines = [kept[key].line() for key in sorted(kept)]
            write_whole(_file(), "".join(f"{line}\n" for line in lines).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
