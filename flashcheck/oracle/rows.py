"""Rows: parts of a call that is too long to evaluate whole.

The rows of attention are independent of each other, so that a row of 131,072 keys costs what
its keys cost, whatever else the call holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flashcheck.formats import Array
from flashcheck.inputs import Inputs
from flashcheck.oracle.definition import Row

SCORES = 1 << 20
"""Scores of a part: its memory is some 300 bytes for each."""


def parts(
    x: Inputs, rows: Iterable[Row], scores: int = SCORES
) -> Iterator[tuple[list[Row], Inputs]]:
    """Inputs [1, 1, n, D] that hold the given rows (b, h, i) of `x`, one head each.

    Row k of a part is the k-th of the rows that come with it. A part has at most `scores`
    scores, or one row.
    """
    # The rows of one head and one sequence: which this is, its first query and end of keys say.
    by_head: dict[tuple[int, int, int, int], list[int]] = {}
    for b, h, i in rows:
        place, last = (int(n[_batch(x, b), i]) for n in (x.span.place, x.span.last))
        by_head.setdefault((b, h, i - place, last), []).append(i)
    step = max(1, scores // max(x.k.shape[2], 1))
    for (b, h, *_), places in by_head.items():
        for first in range(0, len(places), step):
            chosen = places[first : first + step]
            yield [(b, h, i) for i in chosen], _part(x, b, h, np.array(chosen))


def at_risk(x: Inputs, count: int, seed: int = 0) -> list[Row]:
    """`count` rows of `x`, or all: those where a kernel is most likely to be wrong, and others.

    A third has the largest queries, whose scores are largest and err most; a third lies at the
    ends and around multiples of 16, where blocks end; the rest is drawn.
    """
    b, h, n, _ = x.q.shape
    if b * h * n <= count:
        return [(int(i), int(j), int(k)) for i, j, k in np.ndindex(b, h, n)]
    rng = np.random.default_rng(seed)
    largest = np.argsort(-np.abs(x.exact_q).sum(-1), axis=None, kind="stable")[: count // 3]
    blocks = np.unique(np.clip(np.arange(0, n + 16, 16)[:, None] + [-1, 0], 0, n - 1))
    inner = rng.choice(blocks, min(len(blocks), count // 3), replace=False)
    edges = np.unique([0, n - 1, *inner])
    heads = rng.integers(0, b * h, len(edges)) * n
    drawn = rng.choice(b * h * n, count, replace=False)
    wanted = dict.fromkeys(map(int, (*largest, *(heads + edges), *drawn)))
    return [_row(i, x) for i in list(wanted)[:count]]


def _row(index: int, x: Inputs) -> Row:
    b, h, i = np.unravel_index(index, x.q.shape[:3])
    return int(b), int(h), int(i)


def _part(x: Inputs, b: int, h: int, at: NDArray[np.int64]) -> Inputs:
    kv = h // x.heads_per_kv
    first, last, place, shift = (n[_batch(x, b), at] for n in x.span)
    keys = slice(int(first[0]), int(last[0]))
    mask = x.mask
    if mask is not None:
        # Its axes are aligned at the last, and repeat where they have length 1.
        mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
        mask = mask[b if mask.shape[0] > 1 else 0, h if mask.shape[1] > 1 else 0]
        mask = (mask[at] if mask.shape[0] > 1 else mask)[None, None]
    return x.with_(
        q=x.q[b, h, at][None, None], k=x.k[b : b + 1, kv : kv + 1, keys],
        v=x.v[b : b + 1, kv : kv + 1, keys], seqlens_q=None, seqlens_k=None, pages=None,
        mask=mask, enable_gqa=False, layout="contiguous", passed=frozenset(),
        alibi_slopes=None if x.alibi_slopes is None else x.alibi_slopes[h : h + 1],
        sinks=None if x.sinks is None else x.sinks[h : h + 1],
        places=place, queries=keys.stop - keys.start - int(shift[0]),
        q_descale=_factor(x, "q", b, h, at), k_descale=_factor(x, "k", b, kv, keys),
        v_descale=_factor(x, "v", b, kv, keys), descale_block=(1, 1),
    )  # fmt: skip


def _batch(x: Inputs, b: int) -> int:
    """Where in `x.span` batch b is."""
    return b if len(x.span.first) > 1 else 0


def _factor(
    x: Inputs, of: Literal["q", "k", "v"], b: int, h: int, at: NDArray[np.int64] | slice
) -> Array | None:
    """[1, 1, L]: the factor of the positions `at` of a head; None without one."""
    if getattr(x, f"{of}_descale") is None:
        return None
    tensor: Array = getattr(x, of)
    every = np.broadcast_to(x.descale(of), (*tensor.shape[:3], 1))[b, h, :, 0]
    return np.asarray(every[at])[None, None]
