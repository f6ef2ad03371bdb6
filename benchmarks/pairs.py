"""Each option alone and in every legal pair: how many checks, and how many of them failed

    python benchmarks/pairs.py > reports/pairs.md

Problems are drawn as the gate draws them, for a kernel that is taken to name these two options
alone, and those that use both are kept, until a cell has CHECKS checks: agreement and the laws
that apply, in turn. Every check is judged by oracle and bound. A cell is checks, or failed of
checks; x, a pair that is never asked: the kernel contract excludes it, or, for a mask in a packed
batch or on a paged cache, flashcheck makes no such calls; -, an option that the kernel lacks.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from multiprocessing import get_context

from page import head

from flashcheck.kernel import COMPANIONS
from flashcheck.law import Subject, laws
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.strategies import Space, drawn
from flashcheck.verdict import Verdict
from flashcheck.worker import Worker

KERNELS = (
    "numpy_online", "fp32_stats", "triton_flash", "triton_decode", "numpy_online[bottom_right]",
    "fp32_stats[bottom_right]", "triton_flash[bottom_right]",
)  # fmt: skip
"""The last three are the first three with is_causal aligned at the ends."""
DTYPES = ("float32", "bfloat16")
CHECKS = 20
DRAWN = 120
"""Problems of one draw."""

ROUNDS = 12
"""Draws after which a cell is left as it is."""

OPTIONS = (
    "scale", "is_causal", "bool mask", "additive mask", "enable_gqa", "window_size", "softcap",
    "alibi_slopes", "sinks", "num_splits", "cu_seqlens_q", "block_table",
)  # fmt: skip
EXCLUDED = frozenset(
    frozenset(pair)
    for pair in (
        ("is_causal", "bool mask"), ("is_causal", "additive mask"),
        ("bool mask", "additive mask"), ("bool mask", "cu_seqlens_q"),
        ("additive mask", "cu_seqlens_q"), ("bool mask", "block_table"),
        ("additive mask", "block_table"), ("cu_seqlens_q", "block_table"),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a pair: checks is -1 where the kernel lacks an option of it."""

    kernel: str
    dtype: str
    pair: tuple[str, str]
    checks: int
    failed: int


def named(option: str) -> str:
    """The keyword of an option of the table."""
    return "attn_mask" if option.endswith(" mask") else option


def uses(problem: Problem, option: str) -> bool:
    """Whether the problem has the option at a value that changes something."""
    if option.endswith(" mask"):
        mask = problem.mask
        return mask is not None and mask.kind == option.split()[0]
    return option in problem.inputs().used


def restricted(space: Space, pair: tuple[str, str]) -> Space:
    """The problems of a kernel that names these two options alone."""
    names = {named(option) for option in pair}
    names |= {more for name in names for more in COMPANIONS.get(name, ())}
    pages = space.pages if "block_table" in names else ()
    return replace(space, options=frozenset(names), pages=pages)


def problems(space: Space, pair: tuple[str, str], seed: int) -> Iterator[Problem]:
    for turn in range(ROUNDS):
        for problem in drawn(restricted(space, pair), DRAWN, seed + turn):
            if all(uses(problem, option) for option in pair):
                yield problem


def cells(
    kernel: str, dtype: str, pairs: list[tuple[str, str]], device: str | None, seed: int
) -> list[Cell]:
    """The cells of some pairs, by a kernel in a process of its own."""
    found = []
    with Worker(kernel, device) as runner:
        target = runner.start()
        space = probe(runner, target, (dtype,)).spaces.get(dtype)
        for pair in pairs:
            if space is None or not {*map(named, pair)} <= space.options:
                found.append(Cell(kernel, dtype, pair, -1, 0))
                continue
            subject = Subject(runner, target, space, runner.device)
            found.append(Cell(kernel, dtype, pair, *checked(subject, pair, seed)))
    return found


def checked(subject: Subject, pair: tuple[str, str], seed: int) -> tuple[int, int]:
    """Checks made of a pair, and how many of them failed."""
    made = failed = 0
    every = laws()
    for number, problem in enumerate(problems(subject.space, pair, seed)):
        case = subject.case(problem)
        case.start()
        for law in (every[0], every[1 + number % (len(every) - 1)]):
            if not law.applies(case):
                continue
            check = law.check(case)
            if check.verdict is Verdict.UNSUPPORTED:
                continue
            made, failed = made + 1, failed + check.failed
            if check.failed:
                print(subject.target.name, pair, law.name, problem, file=sys.stderr, flush=True)
        if made >= CHECKS:
            break
    return made, failed


def table(found: dict[tuple[str, str], Cell]) -> Iterator[str]:
    yield f"| | {' | '.join(OPTIONS)} |"
    yield "|---" * (len(OPTIONS) + 1) + "|"
    for row in OPTIONS:
        texts = []
        for column in OPTIONS:
            cell = found.get((column, row))
            if cell is None:
                texts.append("x" if frozenset((column, row)) in EXCLUDED else "")
            elif cell.checks < 0:
                texts.append("-")
            else:
                texts.append(f"{cell.failed} of {cell.checks}" if cell.failed else f"{cell.checks}")
        yield f"| {row} | {' | '.join(texts)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--device")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    pairs = [
        pair
        for pair in combinations_with_replacement(OPTIONS, 2)
        if frozenset(pair) not in EXCLUDED
    ]
    found: list[Cell] = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        tasks = [
            pool.submit(cells, kernel, dtype, pairs[part::4], args.device, args.seed)
            for kernel in args.kernels.split(",")
            for dtype in args.dtypes.split(",")
            for part in range(4)
        ]
        for done in as_completed(tasks):
            found += done.result()
            print(f"{len(found)} of {len(tasks) // 4 * len(pairs)} cells", file=sys.stderr)
    head(__doc__)
    made = [cell for cell in found if cell.checks >= 0]
    thin = [cell for cell in made if cell.checks < CHECKS]
    print(
        f"CHECKS = {CHECKS}, seed {args.seed}, {args.device or 'cpu'}: "
        f"{sum(c.checks for c in made):,} checks in {len(made)} cells, "
        f"{sum(c.failed for c in made)} failed, {len(thin)} cells with fewer.\n"
    )
    for kernel in args.kernels.split(","):
        for dtype in args.dtypes.split(","):
            print(f"## {kernel}, {dtype}\n")
            mine = {c.pair: c for c in found if (c.kernel, c.dtype) == (kernel, dtype)}
            print("\n".join(table(mine)) + "\n")


if __name__ == "__main__":
    main()
