r"""The backward pass: P recomputed from one scalar a row, against P kept.

With $P_{ij} = e^{s_{ij} - L_i}$ and $\delta_i = \sum_c dO_{ic} O_{ic}$:
$dV = P^T dO$, $dS = P \circ (dO\,V^T - \delta)$, $dQ = dS\,K$, $dK = dS^T Q$.
Reference: Dao, *FlashAttention-2* (arXiv 2307.08691), algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashcheck.claims.claim import Claim, finding, same_digits
from flashcheck.claims.draws import draw
from flashcheck.claims.machine import Machine, Memory
from flashcheck.claims.tiling import Tiled, tiled, weights
from flashcheck.formats import FORMATS, Array
from flashcheck.reporting.wording import number

N = 1024
DIM = 32
BLOCK = 128

Backward = Callable[[Machine, dict[str, Memory]], tuple[Memory, Memory, Memory]]


def kept(machine: Machine, x: dict[str, Memory]) -> tuple[Memory, Memory, Memory]:
    """dq, dk, dv from P in memory; dP and dS pass through memory as S and P do forward."""
    n, dim = x["q"].shape
    sm_scale = 1 / math.sqrt(dim)
    dp, ds = (machine.memory(name, np.empty((n, n))) for name in ("dp", "ds"))
    dq, dk, dv = (machine.memory(name, np.empty((n, dim))) for name in ("dq", "dk", "dv"))
    dv[:] = x["p"][:].T @ x["do"][:]
    dp[:] = x["do"][:] @ x["v"][:].T
    ds[:] = x["p"][:] * (dp[:] - _delta(x, slice(None)))
    dq[:] = ds[:] @ x["k"][:] * sm_scale
    dk[:] = ds[:].T @ x["q"][:] * sm_scale
    return dq, dk, dv


def recomputed(machine: Machine, x: dict[str, Memory]) -> tuple[Memory, Memory, Memory]:
    """dq, dk, dv from lse: P again block by block. dq is added up in memory."""
    n, dim = x["q"].shape
    sm_scale = 1 / math.sqrt(dim)
    dq, dk, dv = (machine.memory(name, np.zeros((n, dim))) for name in ("dq", "dk", "dv"))
    for start_n in range(0, n, BLOCK):
        cols = slice(start_n, start_n + BLOCK)
        k, v = x["k"][cols], x["v"][cols]
        dk_j, dv_j = machine.chip(np.zeros(k.shape)), machine.chip(np.zeros(v.shape))
        for start_m in range(0, n, BLOCK):
            rows = slice(start_m, start_m + BLOCK)
            q, do = x["q"][rows], x["do"][rows]
            p = np.exp(q @ k.T * sm_scale - x["lse"][rows])
            ds = p * (do @ v.T - _delta(x, rows)) * sm_scale
            machine.multiply_add(dv_j, p.T, do)
            machine.multiply_add(dk_j, ds.T, q)
            dq_i = dq[rows]
            machine.multiply_add(dq_i, ds, k)
            dq[rows] = dq_i
        dk[cols], dv[cols] = dk_j, dv_j
    return dq, dk, dv


def _delta(x: dict[str, Memory], rows: slice) -> Array:
    return np.asanyarray((x["do"][rows] * x["o"][rows]).sum(axis=1, keepdims=True))


@dataclass(frozen=True, slots=True)
class Backwards:
    """Both backward passes on the same problem.

    difference   the largest between their gradients
    weights      the largest between P from lse and P
    saved        elements that the forward pass wrote besides o
    """

    kept: Machine
    recomputed: Machine
    difference: float
    weights: float
    saved: int

    @property
    def right(self) -> bool:
        """Whether the gradients agree: sums of N terms of size 1, twice over."""
        return self.difference <= 64 * N * FORMATS["float64"].unit_roundoff


def run(
    kept: Backward = kept, recomputed: Backward = recomputed, forward: Tiled = tiled
) -> Backwards:
    given = {name: draw(N, DIM, seed) for seed, name in enumerate(("q", "k", "v", "do"))}
    p = weights(given["q"], given["k"])
    one = Machine()
    inputs = [one.memory(name, given[name]) for name in "qkv"]
    o, lse = forward(one, *inputs, BLOCK_M=BLOCK, BLOCK_N=BLOCK)
    saved = one.writes.total() - o.contents().size
    again = np.exp(_scores(given) - lse.contents())
    x = {**given, "o": o.contents(), "lse": lse.contents(), "p": p}
    machines = Machine(), Machine()
    one_way, other_way = (
        kernel(machine, {name: machine.memory(name, array) for name, array in x.items()})
        for kernel, machine in zip((kept, recomputed), machines, strict=True)
    )
    difference = max(
        float(np.abs(a.contents() - b.contents()).max())
        for a, b in zip(one_way, other_way, strict=True)
    )
    return Backwards(*machines, difference, float(np.abs(again - p).max()), saved)


def one_scalar(b: Backwards) -> Claim:
    """What the forward pass leaves for the backward pass besides its inputs and output."""
    each = b.saved / N
    u = FORMATS["float64"].unit_roundoff
    # exp(s - lse) turns the roundings of s and of lse into relative ones of P.
    close = b.weights <= 32 * u
    return Claim(
        "Backward",
        "the backward pass stores one scalar a query, the log-sum-exp",
        "1",
        f"{each:g} a query, {N:,} times fewer than P; P from it differs by {number(b.weights)}",
        finding(False, each == 1 and close and b.right),
        f"writes of the tiled forward pass besides o, N {N:,}, d {DIM}; exp(s - lse) against the "
        f"softmax; gradients from it and from P differ by {number(b.difference)}",
        "q, k, v and o are kept anyway: delta = sum dO O needs o",
    )


def more_flops(b: Backwards, claimed: str = "1.25") -> Claim:
    """One product more: five for four."""
    ratio = b.recomputed.multiply_adds / b.kept.multiply_adds
    return Claim(
        "Backward",
        "recomputing P costs more FLOPs (5 products for 4)",
        f"{claimed} times",
        f"{ratio:.2f} times",
        finding(b.right and same_digits(ratio, claimed)),
        f"multiply-adds counted, N {N:,}, d {DIM}",
    )


def fewer_bytes(b: Backwards, far: float = 2.0) -> Claim:
    """Far less traffic than with P, dP and dS in memory."""
    ratio = b.kept.traffic / b.recomputed.traffic
    return Claim(
        "Backward",
        "and moves far fewer bytes",
        f"more than {far:g} times fewer",
        f"{ratio:.1f} times fewer",
        finding(b.right and ratio > far),
        f"elements read and written, N {N:,}, d {DIM}, blocks of {BLOCK}, dq added up in memory",
    )


def _scores(given: dict[str, Array]) -> Array:
    return np.asarray(given["q"] @ given["k"].T / math.sqrt(DIM))
