"""A sample of the kill matrix: every fault once, and a few in interpreted Triton.

Seeds are fixed, so that a run repeats; `flashcheck power` is the whole matrix.
"""

from __future__ import annotations

import random
from functools import cache

import pytest

from flashcheck import fault
from flashcheck.formats import DTYPES, FLOAT8
from flashcheck.power.catalogue import KERNELS
from flashcheck.power.trial import BUDGET, Trial, in_process, trial, trials
from flashcheck.power.witness import chosen
from flashcheck.probe import probe
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

TRITON = "triton_flash"
INTERPRETED = 4
"""Faults that are tried in Triton's interpreter, besides those that only Triton kernels have."""

Key = tuple[str, str, str]


def _sample() -> tuple[list[Key], list[Key]]:
    """(fault, kernel, dtype) of a trial in this process for each fault, and of those in Triton."""
    here, interpreted = [], []
    for name in fault.names():
        rng = random.Random(name)
        keys = [w.key for w in chosen(KERNELS, faults=[name])]
        if mine := [key for key in keys if not key[1].startswith("triton")]:
            here.append(rng.choice(mine))
        elif keys:
            interpreted.append(rng.choice(keys))
    others = [w.key for w in chosen([TRITON]) if w.fault in {key[0] for key in here}]
    return here, interpreted + random.Random(0).sample(others, INTERPRETED)


HERE, IN_TRITON = _sample()


@cache
def _spaces(kernel: str) -> dict[str, Space]:
    runner = InProcess(kernel)
    return probe(runner, runner.start(), (*DTYPES, *FLOAT8)).spaces


def _trial(name: str, kernel: str, dtype: str) -> Trial:
    space = _spaces(kernel)[dtype]
    subject = in_process(kernel, name, {dtype: space})[dtype]
    return trial(subject, kernel, name, 0, BUDGET // len(DTYPES))


@pytest.mark.parametrize("key", HERE, ids="-".join)
def test_killed(key: Key) -> None:
    assert _trial(*key).killed


@pytest.mark.parametrize("key", IN_TRITON, ids="-".join)
def test_killed_in_triton(key: Key) -> None:
    pytest.importorskip("triton")
    name, kernel, dtype = key
    (found,) = trials(kernel, name, [0], [dtype])
    assert found.killed


@pytest.mark.parametrize("kernel", [k for k in KERNELS if not k.startswith("triton")])
def test_a_kernel_without_a_fault_survives(kernel: str) -> None:
    """So that a fault which survives would be seen here."""
    spaces = _spaces(kernel)
    assert not _trial("", kernel, "float32" if "float32" in spaces else next(iter(spaces))).killed


def test_every_fault_is_tried() -> None:
    assert {key[0] for key in HERE + IN_TRITON} >= {w.fault for w in chosen(KERNELS)}
