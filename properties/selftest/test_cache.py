"""The cache's state machine: exact kernels pass, and wrong ones fail by a short program."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from flashcheck.kernel import Kernel
from flashcheck.law import Subject, laws
from flashcheck.openings import openings
from flashcheck.probe import probe
from flashcheck.verdict import CheckFailed, Verdict
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

AGREEMENT = laws()[0]
cache: Any = import_module("flashcheck.properties.cache")
FEW = settings(
    max_examples=15, stateful_step_count=20, deadline=None, database=None,
    phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
)  # fmt: skip


def subject(target: str | Kernel, dtype: str = "float32") -> Subject:
    runner = InProcess(target)
    found = runner.start()
    return Subject(runner, found, probe(runner, found, (dtype,)).spaces[dtype])


def run(of: Subject, examples: int = FEW.max_examples) -> None:
    machine: Any = seed(3)(lambda: cache.Cache(of))
    run_state_machine_as_test(machine, settings=settings(FEW, max_examples=examples))


@pytest.mark.parametrize(
    ("name", "dtype", "examples"),
    [
        ("fp32_stats", "bfloat16", 15),
        ("numpy_online", "float32", 15),
        ("triton_decode", "float32", 2),
    ],
)
def test_exact_kernels_pass(name: str, dtype: str, examples: int) -> None:
    run(subject(name, dtype), examples)


@pytest.mark.parametrize(
    "fault", ["last_page_read_whole", "page_pairs_assumed_adjacent", "table_stride_of_longest"]
)
def test_faults_fail(fault: str) -> None:
    with pytest.raises(CheckFailed, match=r"out\[.*\] is .* and should be") as raised:
        run(subject(f"fp32_stats+{fault}"))
    steps = [note for note in raised.value.__notes__ if "state." in note]
    assert 2 <= "".join(steps).count("state.") <= 6


class Stale:
    """Reads a block table once, and keeps it for all that follow of its shape."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, ...], torch.Tensor] = {}
        self.attention: Any = import_module("flashcheck.kernels.fp32_stats").attention

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
        block_table: torch.Tensor | None = None, cache_seqlens: torch.Tensor | None = None,
    ) -> Any:  # fmt: skip
        if block_table is not None:
            block_table = self.kept.setdefault(tuple(block_table.shape), block_table.clone())
        return self.attention(
            query, key, value, block_table=block_table, cache_seqlens=cache_seqlens
        )


def test_a_stale_table_fails() -> None:
    """No call by itself is wrong; the second on a cache whose pages have moved is."""
    stale = Stale()
    of = subject(Kernel(stale, name="stale", dtypes=("float32",)))
    for problem in openings(of.space, 0):
        if problem.page:
            stale.kept.clear()
            assert AGREEMENT.check(of.case(problem)).verdict is Verdict.PASS
    with pytest.raises((CheckFailed, Flaky)):
        run(of)
