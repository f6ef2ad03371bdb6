"""Witness: a problem on which a fault shows beyond doubt, kept for each kernel and dtype.

A fault without a witness is equivalent to the clean kernel there, or nobody has shown that it
is not: it does not count. `python -m flashcheck.power.witness` searches those that are missing.
"""

from __future__ import annotations

import argparse
import builtins
import json
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache
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
from flashcheck.strategies import Space
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess, Worker

CLEAR = 8.0
"""How far beyond its bound a witness is."""

FRESH = 3
"""Times that a witness has to show in a kernel that was loaded anew."""

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

    def check(self, space: Space) -> Check:
        """Judge the broken kernel, loaded anew, on the problem. Raises TargetError."""
        name, law = spec(self.kernel, self.fault), law_named(self.property)
        assert law is not None
        isolated = self.kernel.startswith("triton")
        with Worker(name) if isolated else InProcess(name) as runner:
            case = Subject(runner, runner.start(), space).case(self.problem, self.config)
            if not law.applies(case):
                return Check(law.name, Verdict.UNSUPPORTED)
            return law.check(case)


def _file() -> Path:
    return Path(str(resources.files(f"{fault.KERNELS}.faults") / "witnesses.jsonl"))


def witnesses() -> tuple[Witness, ...]:
    """All that are kept, by fault, kernel and dtype."""
    file = _file()
    return _parsed(file.read_text(encoding="utf-8") if file.exists() else "")


@cache
def _parsed(text: str) -> tuple[Witness, ...]:
    return tuple(map(Witness.parse, text.splitlines()))


def chosen(
    kernels: Collection[str],
    dtypes: Collection[str] | None = None,
    faults: Collection[str] | None = None,
) -> tuple[Witness, ...]:
    """Those of some kernels, dtypes and faults; None is all."""
    return tuple(
        w
        for w in witnesses()
        if w.kernel in kernels
        and (dtypes is None or w.problem.dtype in dtypes)
        and (faults is None or w.fault in faults)
    )


def search(name: str, kernel: str, known: Sequence[Witness] = ()) -> list[Witness]:
    """Witnesses of a fault in the dtypes of a kernel where none is `known`. Raises TargetError.

    Those of the same fault in other kernels are tried first.
    """
    found = []
    with Worker(spec(kernel, name)) as runner:
        target = runner.start()
        spaces = probe(runner, target, None).spaces
        for dtype, space in spaces.items():
            subject = Subject(runner, target, space)
            if (name, kernel, dtype) in {w.key for w in known}:
                continue
            hints = [w for w in known if w.fault == name and w.problem.dtype == dtype]
            if witness := _of(name, kernel, subject, len(spaces), hints):
                found.append(witness)
    return found


def _of(
    name: str, kernel: str, subject: Subject, dtypes: int, hints: Iterable[Witness]
) -> Witness | None:
    for hint in hints:
        law = law_named(hint.property)
        for config in subject.target.configs:
            case = subject.case(hint.problem, config)
            if law is None or subject.target.not_taken(case.inputs) or not law.applies(case):
                break
            check = law.check(case)
            if _clear(check):
                found = replace(hint, kernel=kernel, config=config, ratio=check.ratio)
                if _clear(found.check(subject.space)):
                    return found
    for seed in SEEDS:
        searched = Search(
            subject, laws(), quota=BUDGET // dtypes, deadline=None, enough=1,
            checked=lambda *_: None,
        )  # fmt: skip
        searched.run(seed)
        for failure in searched.failures:
            witness = _smallest(name, kernel, subject, failure) if _clear(failure.check) else None
            if witness is not None:
                return witness
        if not searched.failures and seed > 2:
            return None
    return None


def _clear(check: Check) -> bool:
    return check.failed and check.ratio >= CLEAR


def _smallest(name: str, kernel: str, subject: Subject, failure: Failure) -> Witness | None:
    """The failure, shrunk; None where it does not show again whatever the process did before."""
    law: Law = failure.law

    def check(problem: Problem) -> Check:
        return law.check(subject.case(problem, failure.config))

    def fails(problem: Problem) -> bool:
        return law.applies(subject.case(problem, failure.config)) and _clear(check(problem))

    problem = shrink(failure.problem, fails, subject.space, max_runs=120, max_seconds=20)
    ratio = check(problem).ratio
    # What unwritten memory holds is the same again only where a law writes it before.
    first = [x for x in laws() if x.name in ("poison_output", "poison_memory")]
    for other in (*first, law, *laws()):
        found = Witness(name, kernel, other.name, failure.config, ratio, problem)
        again = [found.check(subject.space) for _ in range(FRESH)]
        if all(map(_clear, again)):
            return replace(found, ratio=min(c.ratio for c in again))
    return None


def _job(pair: tuple[str, str], known: Sequence[Witness]) -> list[Witness] | str:
    try:
        return search(*pair, known)
    except TargetError as error:
        return f"{spec(*reversed(pair))}: {error}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Search the witnesses that are missing and keep them."""
    parser = argparse.ArgumentParser(prog="python -m flashcheck.power.witness")
    parser.add_argument("fault", nargs="*", help="all, by default")
    parser.add_argument("--kernel", help="one alone; by default all into which a fault is injected")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args(arguments)
    kept = {w.key: w for w in witnesses()}
    pairs = [(n, k) for n in args.fault or fault.names() for k in fault.read(n).edits]
    pairs = [p for p in pairs if args.kernel in (None, p[1])]
    # Interpreted kernels are slow, and what is found for the others serves them.
    rounds = [[p for p in pairs if p[1].startswith("triton") == slow] for slow in (False, True)]
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for chosen in rounds:
            known = tuple(kept.values())
            jobs_of = {
                pool.submit(_job, pair, [w for w in known if w.fault == pair[0]]): pair
                for pair in chosen
            }
            for done in as_completed(jobs_of):
                found = done.result()
                if isinstance(found, str):
                    print(found, flush=True)
                    continue
                kept |= {w.key: w for w in found}
                new = (f"{w.problem.dtype}:{w.ratio:.3g}" for w in found)
                print(*jobs_of[done], *new, flush=True)
                lines = [kept[key].line() for key in sorted(kept)]
                write_whole(_file(), "".join(f"{line}\n" for line in lines).encode())


if __name__ == "__main__":
    main()
