"""Sequences: how a problem's queries and keys are dealt out to sequences of their own lengths.

A packed batch has cu_seqlens, a paged cache a block table; empty sequences and those of one token
are legal in both, and kernels go wrong where one sequence ends and the next begins.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal, get_args

from flashcheck.problem import Problem

Packing = Literal["none", "ragged", "equal", "unequal", "empty", "ones"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)[:1] * 10 + get_args(Packing)[1:]
"""How a packed batch is dealt out; two thirds are none, so that masks get their share.

ragged: as many queries as keys, cut anywhere; equal: all of one length; unequal: queries and keys
cut apart; empty: ragged, with sequences without queries, without keys and without either; ones:
a query each, as in decoding.
"""

PAGES: tuple[int, ...] = (*[0] * 16, 16, 1, 16, 64, 4, 128, 32, 256)
"""Keys of a page; two thirds have no pages."""

SEQUENCES = 5
"""Most sequences of a packed batch."""


def pack(p: Problem, how: Packing, aligned: bool) -> Problem:
    """The problem as a packed batch of about as many queries and keys.

    aligned: whether is_causal has the alignment of windows and ALiBi. Where it has not, a problem
    with both keeps as many queries as keys.
    """
    rng = random.Random(p.seed)
    n = 1 + rng.randrange(SEQUENCES)
    keys = max(p.len_k, 1)
    if how in ("unequal", "ones", "empty") and p.is_causal and p.placed and not aligned:
        how = "ragged"
    if how == "equal":
        size = max(1, min(p.len_q, keys) // n)
        queries, lens = [size] * n, [size] * n
    elif how == "ones":
        queries, lens = [1] * n, _cut(rng, keys, n)
    elif how == "unequal":
        queries, lens = _cut(rng, p.len_q, n), _cut(rng, keys, n)
    else:
        queries = _cut(rng, min(p.len_q, keys), n)
        lens = list(queries)
    if how == "empty":
        for at, (q, k) in enumerate(((0, 3), (2, 0), (0, 0))):
            where = rng.randrange(len(queries) + 1)
            queries.insert(where, q + at)
            lens.insert(where, k)
    if not sum(queries):
        queries[0] = 1
    longest = (rng.choice((0, 0, 5)), rng.choice((0, 0, 64)))
    return replace(
        p, batch=1, mask=None, seqlens_q=tuple(queries), seqlens_k=tuple(lens), longest=longest,
        len_q=sum(queries), len_k=sum(lens), page=0,
    )  # fmt: skip


def paged(p: Problem, page: int, aligned: bool) -> Problem:
    """The problem on a cache of such pages, whose sequences have lengths of their own."""
    rng = random.Random(p.seed)
    keys = -(-max(p.len_k, 1) // page) * page
    some = (p.len_k, keys, keys - page, page, 0, 1, keys - 1)
    others = (rng.choice((*some, rng.randrange(keys + 1))) for _ in range(p.batch - 1))
    lens = (max(p.len_k, 1), *others)
    causal = p.is_causal and (aligned or not p.placed or set(lens) == {p.len_q})
    return replace(
        p, mask=None, is_causal=causal, len_k=keys, seqlens_k=lens, page=page,
        spare=rng.choice((0, 1, 3)),
    )  # fmt: skip


def _cut(rng: random.Random, total: int, n: int) -> list[int]:
    """n lengths that add up to total; some may be 0."""
    at = sorted(rng.randrange(total + 1) for _ in range(n - 1))
    return [b - a for a, b in zip([0, *at], [*at, total], strict=True)]
