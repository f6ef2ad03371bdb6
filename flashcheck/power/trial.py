"""Trial: one search of the gate's on one kernel that is broken on purpose, until it is caught."""

from __future__ import annotations

import builtins
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flashcheck.budget import PRESETS
from flashcheck.kernel import Target
from flashcheck.law import Subject, laws
from flashcheck.probe import probe
from flashcheck.search import Search
from flashcheck.strategies import Space
from flashcheck.worker import InProcess, Worker

BUDGET = PRESETS["pr"].checks or 0
"""Checks of a gate's default budget, for all dtypes of a kernel."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A search by `seed` on `kernel` in `dtype` with `fault` injected ("" for the kernel as it is).

    problems, checks: how many were needed for the first failing check, or made in all; property:
    which failed, "" where none did; verdict and ratio: that check's.
    """

    kernel: str
    fault: str
    dtype: str
    seed: int
    problems: int
    checks: int
    property: str
    verdict: str = ""
    ratio: float = 0.0

    @builtins.property
    def killed(self) -> bool:
        return self.property != ""


def spec(kernel: str, fault: str) -> str:
    """The TARGET of a kernel with a fault, or of the kernel."""
    return f"{kernel}+{fault}" if fault else kernel


def trials(
    kernel: str,
    fault: str,
    seeds: Sequence[int],
    dtypes: Sequence[str] | None = None,
    *,
    device: str | None = None,
    timeout: float = 60.0,
    spaces: Mapping[str, Space] | None = None,
) -> Iterator[Trial]:
    """Trials of one fault in one kernel, probed as the gate does.

    A Triton kernel runs in a process of its own, others in this one. dtypes: None for all that
    the gate would take. spaces: those of the kernel without the fault, instead of probing.
    Raises TargetError where it cannot be loaded.
    """
    name = spec(kernel, fault)
    isolated = kernel.startswith("triton")
    with Worker(name, device, timeout) if isolated else InProcess(name, device) as runner:
        target = runner.start()
        if spaces is None:
            spaces = probe(runner, target, None).spaces
        for dtype, space in spaces.items():
            if dtypes and dtype not in dtypes:
                continue
            subject = Subject(runner, target, space, runner.device)
            for seed in seeds:
                yield trial(subject, kernel, fault, seed, BUDGET // len(spaces))


def trial(subject: Subject, kernel: str, fault: str, seed: int, checks: int) -> Trial:
    """One search of at most so many checks, which ends at the first that fails."""
    search = Search(
        subject, laws(), quota=checks, deadline=None, enough=1, checked=lambda *_: None
    )  # fmt: skip
    dtype = subject.space.dtype
    search.run(seed * 131 + zlib.crc32(f"{spec(kernel, fault)} {dtype}".encode()))
    made = search.counts.total()
    if not search.failures:
        return Trial(kernel, fault, dtype, seed, search.problems, made, "")
    check = search.failures[0].check
    return Trial(
        kernel, fault, dtype, seed, search.problems, made, check.property, check.verdict,
        check.ratio,
    )  # fmt: skip


def in_process(kernel: str, fault: str, spaces: dict[str, Space]) -> dict[str, Subject]:
    """Subjects in this process, with spaces that are known from the clean kernel."""
    runner = InProcess(spec(kernel, fault))
    target: Target = runner.start()
    return {dtype: Subject(runner, target, space) for dtype, space in spaces.items()}
