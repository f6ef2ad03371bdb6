"""Campaign: the mutants of a kernel, each run in a process of its own, several at a time."""

from __future__ import annotations

import importlib
import random
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from flashcheck.kernel import TargetError
from flashcheck.law import laws
from flashcheck.mutation import reach
from flashcheck.mutation.mutant import Mutant, mutants
from flashcheck.mutation.outcome import Outcome, outcome
from flashcheck.mutation.plan import Plan, plan
from flashcheck.mutation.source import Source


@dataclass(frozen=True, slots=True)
class Campaign:
    """lines: those that run; missed: those beside them that no problem runs.

    found: how many mutants there are; tried: a sample of them, from the top of the file down;
    reproducible: the kernel as it is gives the same bits in another process.
    """

    plan: Plan
    source: Source
    lines: frozenset[int]
    missed: tuple[int, ...]
    found: int
    tried: tuple[Mutant, ...]
    reproducible: bool = True

    def run(self, jobs: int = 1) -> Iterator[Outcome]:
        """The outcomes as they are done, in any order."""
        # Not forked: this process may hold threads, torch's or a user's.
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), _prepare)
        try:
            job = partial(outcome, self.plan)
            for done in as_completed([pool.submit(job, mutant) for mutant in self.tried]):
                yield done.result()
        except BaseException:
            # Ctrl-C: what runs is not waited for; its own child ends with it.
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            # Waited for: the interpreter's farewell to a pool that is being shut down may write to
            # a pipe that the pool has closed.
            pool.shutdown(wait=True, cancel_futures=True)


def campaign(
    spec: str,
    *,
    file: str | None = None,
    dtypes: Sequence[str] | None = None,
    device: str | None = None,
    checks: int,
    seed: int = 0,
    most: int | None = None,
) -> Campaign:
    """Run the kernel as it is and make its mutants, at most so many. Raises TargetError."""
    made, source = plan(
        spec, file=file, dtypes=tuple(dtypes) if dtypes else None, device=device, checks=checks,
        seed=seed,
    )  # fmt: skip
    examples = [(c.problem, c.config) for clean in made.clean.values() for c in clean]
    with ProcessPoolExecutor(1, get_context("spawn"), _prepare) as pool:
        # First: what is imported in this process is so in all that it forks.
        control = pool.submit(outcome, made, Mutant(0, "", "", "", source.text)).result()
        if control.fate != "survived" or control.difference.ratio > 1:
            raise TargetError(
                f"{spec!r} as it is does not keep to what it did before, when it is run anew: "
                f"{control.fate} {control.property} {control.verdict}".rstrip()
            )
        python = pool.submit(reach.traced, spec, device, source.file, examples).result()
    lines = python | reach.compiled(source, python)
    every = mutants(source, lines)
    if not every:
        raise TargetError(
            f"nothing to mutate: no problem runs a line of {source.file} that an operator changes; "
            "--source names another file"
        )
    tried = every
    if most is not None and len(every) > most:
        chosen = sorted(random.Random(seed).sample(range(len(every)), most))
        tried = [every[i] for i in chosen]
    return Campaign(
        made, source, lines, reach.missed(source, python), len(every), tuple(tried),
        not control.difference.differing,
    )  # fmt: skip


def _prepare() -> None:
    """In a process that forks others: import once what all of them need."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's alone
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    importlib.import_module("flashcheck.execution")
    laws()
