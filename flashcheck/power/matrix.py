"""Matrix: faults x kernels x dtypes x seeds, each a trial, and what they come to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context

from flashcheck.kernel import TargetError
from flashcheck.power.trial import Trial, spec, trials

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Cell:
    """A fault in a kernel and the dtypes in which it has a witness; fault "" is the clean kernel.

    seeds: of its searches in each dtype; dtypes: None for all that the gate takes.
    """

    kernel: str
    fault: str
    seeds: tuple[int, ...]
    dtypes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """What some trials come to. problems: of those that killed, sorted."""

    trials: int
    killed: int
    problems: tuple[int, ...]
    properties: tuple[tuple[str, int], ...]

    def percentile(self, share: float) -> float:
        """The smallest number of problems within which `share` of all trials killed."""
        rank = math.ceil(share * self.trials) - 1
        return self.problems[rank] if 0 <= rank < len(self.problems) else math.inf

    @property
    def limit(self) -> float:
        """The one-sided lower confidence limit of the share killed."""
        return lower_limit(self.killed, self.trials)


def run(
    cells: Sequence[Cell], *, device: str | None = None, jobs: int = 1
) -> Iterator[list[Trial] | str]:
    """The trials of each cell as they are done, in any order; a sentence where it cannot run."""
    job = partial(_job, device)
    # Nothing ends the search of a kernel that is right: they come first, each by itself.
    clean = [replace(c, seeds=(seed,)) for c in cells if not c.fault for seed in c.seeds]
    tasks = [*clean, *(cell for cell in cells if cell.fault)]
    # Not forked: this process may hold threads, torch's or a user's.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(job, task) for task in tasks]):
            yield done.result()


def _job(device: str | None, cell: Cell) -> list[Trial] | str:
    try:
        return list(trials(cell.kernel, cell.fault, cell.seeds, cell.dtypes, device=device))
    except TargetError as error:
        return f"{spec(cell.kernel, cell.fault)}: {error}"


def tally(found: Iterable[Trial]) -> Tally:
    every = list(found)
    killed = [t for t in every if t.killed]
    return Tally(
        len(every),
        len(killed),
        tuple(sorted(t.problems for t in killed)),
        tuple(Counter(t.property for t in killed).most_common()),
    )


def lower_limit(killed: int, trials: int, confidence: float = CONFIDENCE) -> float:
    """The smallest share killed at which so many of `trials` is not too good to be true.

    One-sided limit of Clopper and Pearson (Biometrika 26, 1934): the p at which `killed` or
    more have the probability 1 - confidence. Without a survivor, (1 - confidence)^(1 / trials).
    """
    if not killed:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):
        p = (low + high) / 2
        # At most trials - killed survivors, each with the probability 1 - p.
        chance = sum(
            math.comb(trials, s) * (1 - p) ** s * p ** (trials - s)
            for s in range(trials - killed + 1)
        )
        low, high = (p, high) if chance < 1 - confidence else (low, p)
    return low
