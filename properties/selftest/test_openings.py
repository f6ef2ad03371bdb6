"""Finite numbers that stand for -inf show among the openings, whatever a kernel takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from flashcheck.kernel import Kernel
from flashcheck.law import Subject, laws
from flashcheck.openings import LONG, endings, openings
from flashcheck.probe import probe
from flashcheck.sequences import lengths
from flashcheck.strategies import Space
from flashcheck.verdict import Verdict
from flashcheck.worker import InProcess

AGREEMENT = laws()[0]
DTYPES = ("float32", "float16", "bfloat16")
BLOCK = 64


@dataclass(frozen=True)
class Stand:
    """What an online softmax has for -inf: in its first maximum, hidden scores and the tail."""

    start: float = -math.inf
    hidden: float = -math.inf
    tail: float = -math.inf

    def attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attn_mask: torch.Tensor | None = None, is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        q, k, v = query.float(), key.float(), value.float()
        rows, cols = q.shape[2], k.shape[2]
        s = q @ k.mT * q.shape[3] ** -0.5
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            s = s.masked_fill(~attn_mask, self.hidden)
        elif attn_mask is not None:
            s = s + attn_mask.float()
        if is_causal:
            s = s.masked_fill(torch.ones(rows, cols).triu(1).bool(), self.hidden)
        s, v = pad(s, (0, -cols % BLOCK), value=self.tail), pad(v, (0, 0, 0, -cols % BLOCK))
        m_i = torch.full((*s.shape[:3], 1), self.start)
        l_i, acc = torch.zeros_like(m_i), torch.zeros(*s.shape[:3], v.shape[3])
        for n in range(0, s.shape[3], BLOCK):
            m_new = torch.maximum(m_i, s[..., n : n + BLOCK].amax(-1, keepdim=True))
            m_ref = m_new.masked_fill(m_new == -math.inf, 0.0)
            alpha, p = torch.exp(m_i - m_ref), torch.exp(s[..., n : n + BLOCK] - m_ref)
            l_i = l_i * alpha + p.sum(-1, keepdim=True)
            acc = acc * alpha + p @ v[:, :, n : n + BLOCK]
            m_i = m_new
        out = acc / l_i.masked_fill(l_i == 0, 1.0)
        return out.to(query.dtype), (m_i + l_i.log())[..., 0]


def kernel(stand: Stand, takes: str) -> Kernel:
    def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return stand.attention(query, key, value)

    def causal(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool = False
    ) -> Any:
        return stand.attention(query, key, value, is_causal=is_causal)

    def masked(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
        attn_mask: torch.Tensor | None = None,
    ) -> Any:  # fmt: skip
        return stand.attention(query, key, value, attn_mask)

    of = {"plain": plain, "causal": causal, "masked": masked}
    return Kernel(of[takes], name=takes, dtypes=DTYPES)


def verdicts(stand: Stand, takes: str, dtype: str, seed: int) -> list[Verdict]:
    runner = InProcess(kernel(stand, takes))
    target = runner.start()
    space = probe(runner, target, (dtype,)).spaces[dtype]
    subject = Subject(runner, target, space)
    problems = (*openings(space, seed), *endings(space, seed))
    return [AGREEMENT.check(subject.case(problem)).verdict for problem in problems]


@pytest.mark.parametrize("takes", ["plain", "causal", "masked"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_kernel_with_infinities_is_right_and_no_opening_says_nothing(
    takes: str, dtype: str
) -> None:
    assert set(verdicts(Stand(), takes, dtype, seed=1)) == {Verdict.PASS}


@pytest.mark.parametrize("number", [-1e4, -3e4, -65504.0])
@pytest.mark.parametrize(
    ("where", "takes"),
    [
        ("start", "plain"), ("tail", "plain"), ("start", "causal"), ("hidden", "causal"),
        ("tail", "causal"), ("start", "masked"), ("hidden", "masked"), ("tail", "masked"),
    ],
)  # fmt: skip
def test_a_finite_number_for_minus_infinity_is_found(where: str, takes: str, number: float) -> None:
    for seed, dtype in enumerate(DTYPES):
        assert Verdict.VIOLATION in verdicts(Stand(**{where: number}), takes, dtype, seed)


@pytest.mark.parametrize("seed", range(3))
def test_the_least_finite_number_is_found_in_rows_without_a_key(seed: int) -> None:
    least = Stand(hidden=torch.finfo(torch.float32).min)
    assert Verdict.VIOLATION in verdicts(least, "masked", "float32", seed)


@pytest.mark.parametrize("seed", range(3))
def test_wide_heads_and_a_long_row_are_among_the_openings(seed: int) -> None:
    found = list(openings(Space(), seed))
    assert {p.dim for p in found} & {132, 255}
    assert {p.dim_v for p in found} & {132, 255}
    assert [p.len_q for p in found if p.len_k == LONG] == [31]


FURTHER = ("window_size", "softcap", "alibi_slopes", "sinks", "num_splits")


@pytest.mark.parametrize("seed", range(3))
def test_options_that_a_kernel_lacks_are_in_no_opening(seed: int) -> None:
    """A kernel without any gets no further opening; with one alone, none but that one is used."""
    usual = Space().options - {*FURTHER}
    few = list(openings(Space(options=usual), seed))
    assert not any(p.inputs().used & {*FURTHER} for p in few)
    for option in FURTHER:
        more = list(openings(Space(options=usual | {option}), seed))
        assert [p for p in more if p in few] == few
        added = [p.inputs().used & {*FURTHER} for p in more if p not in few]
        assert added
        assert all(used == {option} for used in added)


@pytest.mark.parametrize("dtype", DTYPES)
def test_openings_with_options_are_judged(dtype: str) -> None:
    runner = InProcess("numpy_online")
    target = runner.start()
    space = probe(runner, target, (dtype,)).spaces[dtype]
    assert space.options >= {*FURTHER}
    subject = Subject(runner, target, space)
    found = {AGREEMENT.check(subject.case(p)).verdict for p in openings(space, 7)}
    assert found == {Verdict.PASS}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("option", ["cu_seqlens_q", "block_table"])
def test_openings_of_sequences(option: str, seed: int) -> None:
    """An empty sequence, no two alike, within what a kernel takes; a table with room to spare. One
    batch has more sequences than 32, and one cache a prefix that all share."""
    usual = Space().options - {*FURTHER}
    assert not any(p.seqlens_k for p in openings(Space(options=usual), seed))
    for space in (Space(options=usual | {option}), Space(options=usual | {option}, work=60_000)):
        added = [p for p in openings(space, seed) if p.seqlens_k]
        assert len(added) == {"cu_seqlens_q": 3, "block_table": 5}[option]
        apart = [p for p in added if len(p.seqlens_k) < 33 and not p.shared]
        assert len(apart) == len(added) - 1
        for p in apart:
            assert 0 in p.seqlens_k
            assert len(set(p.seqlens_k)) == len(p.seqlens_k)
        for p in added:
            pairs = sum(q * k for q, k in lengths(p))
            assert p.heads * pairs * (p.dim + p.dim_v) <= space.work
            x = p.inputs()
            assert x.pages is None or x.pages.table.shape[1] > -(-max(p.seqlens_k) // p.page)
            assert p.heads > p.kv_heads > 1 or space.work < 100_000
