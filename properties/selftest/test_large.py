"""Problems beyond the sizes that are drawn: their cost, and what only they show."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from flashcheck.budget import PRESETS
from flashcheck.kernel import Kernel
from flashcheck.large import LONGEST, PROGRAMS, large
from flashcheck.law import Subject, law_named
from flashcheck.openings import openings
from flashcheck.probe import INTERPRETED_LENGTH
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

MOST_MEMORY = 3 << 20
"""KiB that a process may have held: some 20 arrays of the scores of two rows, and torch."""


def index_of_16_bits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Keys are counted in 16 bits: those from 65,536 on are the first again."""
    j = torch.arange(key.shape[2]) % (1 << 16)
    return scaled_dot_product_attention(query, key[:, :, j], value[:, :, j])


def grid_of_16_bits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Batch x heads is the second axis of a grid that ends at 65,535."""
    b, h = query.shape[:2]
    q, k, v = (t.expand(b, h, *t.shape[2:]).flatten(0, 1)[:PROGRAMS] for t in (query, key, value))
    out = torch.zeros(b * h, query.shape[2], value.shape[3], dtype=query.dtype)
    out[:PROGRAMS] = scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
    shape = (b, h, *out.shape[1:])
    return out.view(shape)


def worst(fn: Any, space: Space, problems: Any) -> list[bool]:
    agreement = law_named("agreement")
    assert agreement is not None
    with InProcess(Kernel(fn)) as runner:
        subject = Subject(runner, runner.start(), space)
        return [agreement.check(subject.case(problem)).failed for problem in problems]


def plain() -> Space:
    return Space(options=frozenset())


def test_the_nightly_budget_has_them() -> None:
    assert PRESETS["nightly"].large
    assert not PRESETS["pr"].large
    assert not list(large(Space(max_length=INTERPRETED_LENGTH), 0))


@pytest.mark.parametrize("fn", [index_of_16_bits, grid_of_16_bits])
def test_faults_that_only_they_show(fn: Any) -> None:
    """In bounded memory, by the oracle's own values of every row."""
    long, many = large(plain(), 1)
    assert abs(long.len_k - LONGEST) <= 1
    assert many.batch * many.heads > PROGRAMS
    shows = worst(fn, plain(), (long, many))
    assert shows == [fn is index_of_16_bits, fn is grid_of_16_bits]
    assert not any(worst(fn, plain(), openings(plain(), 1)))
    assert not any(worst(scaled_dot_product_attention, plain(), (long, many)))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MOST_MEMORY
