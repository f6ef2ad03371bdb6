"""Attention on a Machine, twice: with the score matrix in memory, and tiled.

Both read q, k and v [N, d] from memory and write o [N, d]. The naive form is given the best
case: each product reads its operands once, and a row of scores fits on the chip.
Reference: Dao et al., *FlashAttention* (arXiv 2205.14135), algorithms 0 and 1; the loop over
queries is the outer one, as in *FlashAttention-2* (arXiv 2307.08691).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashcheck.claims.draws import draw
from flashcheck.claims.machine import Machine, Memory
from flashcheck.formats import FORMATS, Array, Bools

Tiled = Callable[..., tuple[Memory, Memory]]
Naive = Callable[[Machine, Memory, Memory, Memory], Memory]


def naive(machine: Machine, q: Memory, k: Memory, v: Memory) -> Memory:
    """S = Q K^T to memory; P = softmax(S) to memory; O = P V."""
    n, dim = q.shape
    s, p = (machine.memory(name, np.empty((n, n))) for name in "sp")
    o = machine.memory("o", np.empty(v.shape))
    s[:] = q[:] @ k[:].T * (1 / math.sqrt(dim))
    softmax(s, p)
    o[:] = p[:] @ v[:]
    return o


def softmax(s: Memory, p: Memory) -> None:
    """The pass from scores to weights."""
    x = s[:]
    x = np.exp(x - x.max(axis=1, keepdims=True))
    p[:] = x / x.sum(axis=1, keepdims=True)


def tiled(
    machine: Machine,
    q: Memory,
    k: Memory,
    v: Memory,
    *,
    BLOCK_M: int,
    BLOCK_N: int,
    causal: bool = False,
) -> tuple[Memory, Memory]:
    """The recurrence over blocks of keys for each block of queries; o and lse to memory."""
    n = len(q)
    o, lse = machine.memory("o", np.empty(v.shape)), machine.memory("lse", np.empty((n, 1)))
    for start_m in range(0, n, BLOCK_M):
        rows = slice(start_m, min(start_m + BLOCK_M, n))
        # Blocks of keys that are hidden from every query of the block are skipped.
        starts = range(0, rows.stop if causal else n, BLOCK_N)
        blocks = [slice(start_n, min(start_n + BLOCK_N, n)) for start_n in starts]
        o[rows], lse[rows] = _query_block(machine, q[rows], k, v, blocks, rows, causal)
    return o, lse


# What a function leaves behind on the chip is gone when it returns, so that one block of
# queries, and of it one block of keys, is there at a time.


def _query_block(
    machine: Machine,
    q: Array,
    k: Memory,
    v: Memory,
    blocks: list[slice],
    rows: slice,
    causal: bool,
) -> tuple[Array, Array]:
    """o and lse of the queries q, which are `rows` of all."""
    n = len(k)
    m_i: Array = machine.chip(np.full((len(q), 1), -np.inf))
    l_i = machine.chip(np.zeros((len(q), 1)))
    acc = machine.chip(np.zeros((len(q), v.shape[1])))
    for cols in blocks:
        hidden = np.arange(n)[rows, None] < np.arange(n)[cols] if causal else None
        m_i = _key_block(machine, q, k, v, cols, hidden, m_i, l_i, acc)
    acc /= l_i
    return acc, m_i + np.log(l_i)


def _key_block(
    machine: Machine,
    q: Array,
    k: Memory,
    v: Memory,
    cols: slice,
    hidden: Bools | None,
    m_i: Array,
    l_i: Array,
    acc: Array,
) -> Array:
    """Take in the keys `cols`: l_i and acc change in place, the new maximum is returned."""
    s = q @ k[cols].T
    s *= 1 / math.sqrt(q.shape[1])
    if hidden is not None:
        s[hidden] = -np.inf
    m_new: Array = np.maximum(m_i, s.max(axis=1, keepdims=True))
    alpha = np.exp(m_i - m_new)
    s -= m_new
    np.exp(s, out=s)
    l_i *= alpha
    l_i += s.sum(axis=1, keepdims=True)
    acc *= alpha
    machine.multiply_add(acc, s, v[cols])
    return m_new


@dataclass(frozen=True, slots=True)
class Run:
    """What a kernel was given, what it took, and its largest error.

    `needed` is the size of the on-chip memory in elements.
    """

    n: int
    dim: int
    machine: Machine
    error: float

    @property
    def needed(self) -> int:
        return self.machine.peak

    @property
    def right(self) -> bool:
        """Whether attention was computed at all: |v| is below 4, weights sum to 1."""
        return self.error <= 4 * (self.n + self.dim) * FORMATS["float64"].unit_roundoff


def run_naive(kernel: Naive, n: int, dim: int) -> Run:
    machine, inputs = _inputs(n, dim)
    return _run(machine, inputs, kernel(machine, *inputs))


def run_tiled(
    kernel: Tiled, n: int, dim: int, block_m: int, block_n: int, causal: bool = False
) -> Run:
    machine, inputs = _inputs(n, dim)
    o, _ = kernel(machine, *inputs, BLOCK_M=block_m, BLOCK_N=block_n, causal=causal)
    return _run(machine, inputs, o, causal)


def weights(q: Array, k: Array, causal: bool = False) -> Array:
    """P = softmax(Q K^T / sqrt(d)) [N, N], computed directly."""
    s = q @ k.T / math.sqrt(q.shape[1])
    if causal:
        s[np.triu_indices(len(s), 1)] = -np.inf
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def _inputs(n: int, dim: int) -> tuple[Machine, tuple[Memory, Memory, Memory]]:
    machine = Machine()
    q, k, v = (machine.memory(name, draw(n, dim, seed)) for seed, name in enumerate("qkv"))
    return machine, (q, k, v)


def _run(
    machine: Machine, inputs: tuple[Memory, Memory, Memory], o: Memory, causal: bool = False
) -> Run:
    q, k, v = (x.contents() for x in inputs)
    error = float(np.abs(o.contents() - weights(q, k, causal) @ v).max())
    n, dim = q.shape
    return Run(n, dim, machine, error)
