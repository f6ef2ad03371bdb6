"""Further problems, by which models that explain one wrong result are told apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from flashcheck.case import Case
from flashcheck.fills import Fill
from flashcheck.inputs import Inputs
from flashcheck.openings import openings
from flashcheck.problem import Problem
from flashcheck.sequences import lengths, plain, with_lengths
from flashcheck.strategies import Space

NORMAL = Fill(noise="normal", spread=1.0)

WORK = 300_000
"""Multiply-adds of the first further problem, at most."""


def problems(case: Case, x: Inputs) -> Iterator[Problem]:
    """Those of the shape of a failing call `x` first, then such as a search begins with."""
    space = case.space
    within = space.takes(case.problem)
    yield from (p for p in _alike(case, x) if space.takes(p) or not within)
    for seed in (1, 2):
        yield from sorted(openings(space, seed), key=partial(_options, space))


def _options(space: Space, p: Problem) -> tuple[bool, int]:
    """Whether it is long, and the options by which a problem is told apart less well: more
    than one thing may be wrong."""
    further = p.window != (-1, -1), p.softcap, p.alibi_slopes, p.sinks, p.num_splits > 1
    long = max(p.len_q, p.len_k) > space.max_length
    return long, sum(map(bool, further)) + len(further) * bool(p.seqlens_k)


def _alike(case: Case, x: Inputs) -> Iterator[Problem]:
    space = case.space
    if case.captured is None:
        # A law may have failed on a call of another shape than the problem's.
        pages = x.pages
        p = replace(
            case.problem, len_q=x.q.shape[2], len_k=x.k.shape[2], layout=x.layout,
            heads=x.q.shape[1], kv_heads=x.k.shape[1], batch=x.q.shape[0],
            seqlens_q=x.seqlens_q or (), seqlens_k=x.seqlens_k or (), longest=x.longest,
            page=0 if pages is None else pages.size,
            spare=0 if pages is None else max(0, pages.count - pages.table.size),
        )  # fmt: skip
        noisy = replace(p, q=NORMAL, k=NORMAL, v=NORMAL, seed=p.seed + 1)
        sharp = replace(noisy, q=replace(NORMAL, spread=4.0))
        # Several blocks of keys and, where there is room, of queries.
        room = min(space.work, WORK) // (p.batch * p.heads * (p.dim + p.dim_v))
        len_k = max(1, min(2 * p.len_k + 73, space.max_length, room // max(p.len_q, 4)))
        len_q = max(1, min(p.len_q + 139, space.max_length, room // len_k))
        if p.is_causal and space.causal_square:
            len_q = len_k = min(len_q, len_k)
        longer = _longer(sharp, len_q, len_k)
        yield longer
        if longer.seqlens_k and space.dense:
            # What is wrong without sequences too is no fault of theirs, and the reverse.
            each = lengths(longer)
            at = max(range(len(each)), key=lambda i: (each[i][0] > 0, min(each[i])))
            if each[at][0]:
                yield plain(longer, at)
        # By the default scale, one that is applied twice looks like one without a root.
        if "scale" in space.options and (p.scale is None or space.scale_none):
            yield replace(noisy, scale=0.5 if p.scale is None else None)
        yield noisy
        yield replace(p, seed=p.seed + 1, v=NORMAL)
        # Where a bias is the same for every key, out does not show it; where it is large, a limit.
        if p.mask is not None and p.mask.kind == "additive" and p.mask.bias != NORMAL:
            mask = replace(p.mask, bias=NORMAL, per_key=True)
            yield replace(longer, mask=mask)
        # Whole blocks, so that nothing is padded.
        if not (p.is_causal and space.causal_square) and space.max_length >= 64:
            keys = 128 if min(space.max_length, len_k) >= 128 else 64
            whole = [(queries, keys) for queries, _ in lengths(p)]
            yield replace(with_lengths(p, whole), v=NORMAL)
        yield from _empty(noisy, space, room)


def _longer(p: Problem, len_q: int, len_k: int) -> Problem:
    """The problem with so many queries and keys; sequences share what there is more of them."""
    if not p.seqlens_k:
        return replace(p, len_q=len_q, len_k=len_k)
    each = lengths(p)
    n = len(each) if p.packed else 1
    queries, keys = max(0, len_q - p.len_q) // n, max(0, len_k - p.len_k) // n
    if p.is_causal and p.placed:
        keys = queries = min(keys, queries)
    return with_lengths(p, [(i + queries, j + keys) for i, j in each])


def _empty(p: Problem, space: Space, room: int) -> Iterator[Problem]:
    """Rows without a key beside others that have some, or more rows if none of them has any."""
    if p.is_causal and space.causal_square:
        return
    if p.seqlens_k:
        each = lengths(p)
        if not all(keys for _, keys in each):
            for queries, keys in ((3, 5), (7, 64)):
                own = each[0][0] if p.page else queries
                yield with_lengths(p, [*each, (own, 0), (own, min(keys, space.max_length))])
        return
    for len_q, length in ((3, 5), (7, 64), (5, 97), (4, 130)):
        len_k = min(length, space.max_length)
        if p.len_k == 0:
            yield replace(p, len_q=min(len_q, space.max_length))
        elif p.mask is not None and p.mask.rank > 1 and len_q * len_k <= room:
            mask = replace(p.mask, hides="row", amount=len_q // 2, per_query=True)
            yield replace(p, len_q=len_q, len_k=len_k, mask=mask)
