"""The mistakes that every derivation of online softmax warns of: each found, each named."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

import flashcheck
from flashcheck.events import Checked, Event, FailureFound
from flashcheck.problem import Problem

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

FILE = Path(__file__).with_name("seed_mistakes.py")
TRITON_FILE = Path(__file__).with_name("seed_mistakes_triton.py")
DTYPES = ("float32", "float16", "bfloat16")
BLOCK_N = 16


@dataclass
class Gated:
    """What a gate of one function with all three dtypes came to."""

    exit_code: int = -1
    failures: tuple[FailureFound, ...] = ()
    checks: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)

    def hear(self, event: Event) -> None:
        if isinstance(event, Checked):
            self.checks[event.dtype] += 1
            self.failed[event.dtype] += event.check.failed

    @property
    def said(self) -> str:
        """The first sentences of all explanations, on one line."""
        first = [f.text.strip("\n").split("\n", 1)[1].split("\n\n")[0] for f in self.failures]
        return " ".join(" ".join(first).split())


def gate(function: str, folder: Path) -> Gated:
    gated = Gated()
    result = flashcheck.gate(
        [f"{FILE}:{function}"], dtypes=DTYPES, seed=0, isolate=False, examples=folder,
        listeners=[gated.hear],
    )  # fmt: skip
    gated.exit_code, gated.failures = result.exit_code, result.failures
    return gated


def scores(p: Problem) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """[B, Hq, Lq, Lk], scaled."""
    x = p.inputs()
    k = np.repeat(x.k, x.heads_per_kv, axis=1).astype(np.float64)
    return np.asarray(x.q.astype(np.float64) @ k.swapaxes(-1, -2) * float(x.exact_scale))


def test_right(tmp_path: Path) -> None:
    gated = gate("right", tmp_path)
    assert gated.exit_code == 0
    assert not gated.failures
    assert gated.failed.total() == 0
    assert set(gated.checks) == set(DTYPES)


def two_blocks(found: FailureFound) -> bool:
    """17 keys, the last of which has a later, larger maximum than the first block."""
    row = scores(found.problem)[0, 0, -1]
    return found.problem.len_k == BLOCK_N + 1 and row[BLOCK_N:].max() > row[:BLOCK_N].max()


def all_negative(found: FailureFound) -> bool:
    return bool(scores(found.problem).max() < 0)


def overflows(found: FailureFound) -> bool:
    return bool(scores(found.problem).max() > 88)


def partial_block(found: FailureFound) -> bool:
    return found.problem.len_k % BLOCK_N != 0


def causal(found: FailureFound) -> bool:
    return found.problem.is_causal


def anything(found: FailureFound) -> bool:
    return True


@pytest.mark.parametrize(
    ("function", "words", "shows"),
    [
        # float16 and TF32 have the same significand.
        ("half_statistics", ["float16|tf32|too coarse"], anything),
        ("no_max", ["exp overflows", "maximum is not subtracted"], overflows),
        ("acc_not_rescaled", ["Keys 0 to 15 weigh", "too much", "not rescaled"], two_blocks),
        ("m_starts_at_zero", ["below -", "starts at 0"], all_negative),
        ("tail_dropped", ["missing the contribution of key"], partial_block),
        ("tail_padded", ["more key", "padding"], partial_block),
        ("causal_sees_next", ["causal mask lets query i see key i \\+ 1"], causal),
        ("causal_misses_itself", ["does not see its own key i"], causal),
        ("merge_without_rescaling", ["weigh", "not rescaled"], anything),
    ],
)
def test_mistake(
    function: str, words: list[str], shows: Callable[[FailureFound], bool], tmp_path: Path
) -> None:
    gated = gate(function, tmp_path)
    assert gated.exit_code == 1
    assert [d for d in DTYPES if not gated.failed[d]] == [], "dtypes in which it was not found"
    for word in words:
        assert re.search(word, gated.said), gated.said
    # The first cause is the one that a reader sees first.
    assert shows(gated.failures[0]), gated.failures[0].text
    for found in gated.failures:
        assert f"flashcheck replay {found.example_id}" in found.text
        assert (tmp_path / f"{found.example_id}.json").is_file()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("acc_not_rescaled", ["Keys 0 to 15 weigh", "too much", "not rescaled"]),
        ("m_starts_at_zero", ["normalizer is too large|below -|starts at 0"]),
        ("no_max", ["maximum is not subtracted|exp overflows|normalizer is too large"]),
        ("half_statistics", ["times the bound"]),
        ("tail_dropped", ["missing the contribution of key"]),
        ("tail_padded", ["more key", "padding"]),
        ("causal_sees_next", ["causal mask lets query i see key i \\+ 1"]),
        ("causal_forgotten", ["causal"]),
        ("diagonal_block_skipped", ["no key"]),
    ],
)
def test_mistake_in_a_triton_kernel(function: str, words: list[str], tmp_path: Path) -> None:
    """A natural bfloat16 kernel, tl.dot on bfloat16 operands, interpreted on the CPU."""
    pytest.importorskip("triton")
    gated = Gated()
    result = flashcheck.gate(
        [f"{TRITON_FILE}:{function}"], dtypes=["bfloat16"], device="cpu", seed=0, budget="60",
        examples=tmp_path,
    )  # fmt: skip
    gated.failures = result.failures
    assert result.exit_code == 1, result.reason
    for word in words:
        assert re.search(word, gated.said), gated.said


def test_right_triton_kernel(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    result = flashcheck.gate(
        [f"{TRITON_FILE}:right"], dtypes=["bfloat16"], device="cpu", seed=0, budget="400",
        examples=tmp_path,
    )  # fmt: skip
    assert result.passed, result.reason
