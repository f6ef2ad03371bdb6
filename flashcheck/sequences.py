"""Sequences: how a problem's queries and keys are dealt out to sequences of their own lengths.

A packed batch has cu_seqlens, a paged cache a block table; empty sequences and those of one token
are legal in both, and kernels go wrong where one sequence ends and the next begins.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, get_args

from flashcheck.problem import Problem

Packing = Literal["none", "ragged", "equal", "unequal", "empty", "ones", "many"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)[:1] * 10 + get_args(Packing)[1:]
"""How a packed batch is dealt out; 10 of 16 are none, so that masks get their share.

ragged: as many queries as keys, cut anywhere; equal: all of one length; unequal: queries and keys
cut apart; empty: ragged, with sequences without queries, without keys and without either; ones:
a query each, as in decoding; many: more sequences than a block of 16 or 32 has, of few tokens.
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
    if how == "many":
        n = rng.choice((17, 33, 40))
        queries = [rng.randrange(4) for _ in range(n)]
        lens = list(queries)
    elif how == "equal":
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
    spare = rng.choice((0, 1, 3))
    shared = rng.choice((0, 0, 1, 3)) if p.batch > 1 else 0
    return replace(
        p, mask=None, is_causal=causal, len_k=keys, seqlens_k=lens, page=page, spare=spare,
        shared=min(shared, keys // page),
    )  # fmt: skip


Lengths = tuple[int, int]
"""Queries and keys of a sequence."""


def lengths(p: Problem) -> list[Lengths]:
    """(queries, keys) of each sequence; a call without sequences counts as one."""
    queries = p.seqlens_q or (p.len_q,) * max(len(p.seqlens_k), 1)
    return list(zip(queries, p.seqlens_k or (p.len_k,), strict=True))


def with_lengths(p: Problem, of_each: Sequence[Lengths]) -> Problem:
    """The problem with sequences of such lengths, in the form that it has.

    A call without sequences takes one. On a paged cache all have as many queries, the most that
    is asked for, and pages are added where keys need them. Raises ProblemError where no query
    is left.
    """
    queries, keys = (tuple(n) for n in zip(*of_each, strict=True))
    if p.page:
        room = max(p.len_k, _whole_pages(max(keys), p.page))
        return replace(p, batch=len(keys), len_q=max(queries), len_k=room, seqlens_k=keys)
    if p.packed:
        return replace(p, len_q=sum(queries), len_k=sum(keys), seqlens_q=queries, seqlens_k=keys)
    ((len_q, len_k),) = of_each
    return replace(p, len_q=len_q, len_k=len_k)


def with_length(
    p: Problem, at: int = 0, *, queries: int | None = None, keys: int | None = None
) -> Problem:
    """The problem with other queries or keys in sequence `at`; on a paged cache the queries are
    those of all."""
    of_each = lengths(p)
    of_each[at] = (
        of_each[at][0] if queries is None else queries,
        of_each[at][1] if keys is None else keys,
    )
    if queries is not None and p.page:
        of_each = [(queries, k) for _, k in of_each]
    return with_lengths(p, of_each)


def fewest_slots(p: Problem) -> int:
    """The keys of the pages that the longest sequence of a paged cache needs, one at least."""
    return _whole_pages(max(1, *p.seqlens_k), p.page)


def _whole_pages(keys: int, page: int) -> int:
    return -(-keys // page) * page


def plain(p: Problem, at: int = 0) -> Problem:
    """Sequence `at` as a call of its own, neither packed nor paged."""
    queries, keys = lengths(p)[at]
    return replace(
        p, batch=1 if p.seqlens_k else p.batch, len_q=queries, len_k=keys, seqlens_q=(),
        seqlens_k=(), longest=(0, 0), page=0, spare=0, shared=0,
    )  # fmt: skip


def sequence_of(p: Problem, batch: int, query: int) -> int:
    """The sequence of a row; 0 for a call without sequences and for rows that are not there."""
    if p.page:
        return batch if batch < len(p.seqlens_k) else 0
    for at, n in enumerate(p.seqlens_q):
        if query < n:
            return at
        query -= n
    return 0


def _cut(rng: random.Random, total: int, n: int) -> list[int]:
    """n lengths that add up to total; some may be 0."""
    at = sorted(rng.randrange(total + 1) for _ in range(n - 1))
    return [b - a for a, b in zip([0, *at], [*at, total], strict=True)]
