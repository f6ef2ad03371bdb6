r"""Traffic and work, counted: what crosses the slow memory, and how many multiply-adds.

M is the on-chip memory in elements that a tiled run was seen to need, N the length, d the
head size. Laws are fitted by least squares, on the counts or on their logarithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from flashcheck.claims.claim import Claim, finding, within_factor
from flashcheck.claims.tiling import Naive, Run, Tiled, naive, run_naive, run_tiled, tiled
from flashcheck.reporting.wording import number

LENGTHS = (512, 1024, 2048)
DIMS = (8, 16, 32)
BLOCKS = (32, 64, 128)
"""Queries of a block. Keys of a block are d / 2, so that the queries take most of M."""

_EXPONENT = 0.1
"""How far a fitted exponent may be from a whole number: blocks do not divide evenly, and q
and o cross once whatever M is."""


class Counts:
    """Runs of both kernels over all of LENGTHS, DIMS and BLOCKS that leave several blocks."""

    def __init__(
        self,
        naive: Naive = naive,
        tiled: Tiled = tiled,
        lengths: Sequence[int] = LENGTHS,
        dims: Sequence[int] = DIMS,
        blocks: Sequence[int] = BLOCKS,
    ) -> None:
        self.naive = {(n, d): run_naive(naive, n, d) for n in lengths for d in dims}
        self.tiled = [
            run_tiled(tiled, n, d, block, max(1, d // 2))
            for n in lengths
            for d in dims
            for block in blocks
            if n >= 8 * block
        ]

    @property
    def pairs(self) -> list[tuple[Run, Run]]:
        return [(self.naive[run.n, run.dim], run) for run in self.tiled]

    @property
    def right(self) -> bool:
        return all(run.right for run in (*self.naive.values(), *self.tiled))

    @property
    def grid(self) -> str:
        n, d = sorted({run.n for run in self.tiled}), sorted({run.dim for run in self.tiled})
        m = [run.needed for run in self.tiled]
        return (
            f"{len(self.tiled)} runs: N {_range(n)}, d {_range(d)}, M {min(m):,} to {max(m):,} "
            "elements"
        )


def score_passes(counts: Counts) -> Claim:
    """The naive form writes and reads S and P once each."""
    each = {
        (verb, name): [getattr(run.machine, verb)[name] / run.n**2 for run in counts.naive.values()]
        for name in "sp"
        for verb in ("writes", "reads")
    }
    claimed = 1
    passes = {key: set(found) for key, found in each.items()}
    seen = ", ".join(
        f"{name.upper()} {verb.removesuffix('s')} {'/'.join(f'{x:g}' for x in sorted(found))}"
        for (verb, name), found in passes.items()
    )
    holds = counts.right and all(found == {claimed} for found in passes.values())
    return Claim(
        "Traffic",
        "naive attention writes S, reads it for the softmax, writes P, reads P for P V",
        f"{claimed} pass over N x N each",
        f"times N^2: {seen}",
        finding(False, holds),
        f"counted, {len(counts.naive)} runs",
        "a row of scores fits on the chip; otherwise the softmax reads S again",
    )


def never_stored(counts: Counts) -> Claim:
    """The tiled form writes o and lse, nothing that grows with N^2."""
    extra = max(run.machine.writes.total() / (run.n * run.dim + run.n) for run in counts.tiled)
    return Claim(
        "Traffic",
        "tiled, the N x N scores never touch the slow memory",
        "N d of o, N of lse are written",
        f"{extra:.3f} times that",
        finding(counts.right and extra == 1),
        f"counted, {counts.grid}",
    )


def naive_law(counts: Counts) -> Claim:
    """Theta(N d + N^2)."""
    runs = list(counts.naive.values())
    terms = np.array([(run.n * run.dim, run.n**2) for run in runs], float)
    found = np.array([run.machine.traffic for run in runs], float)
    (of_nd, of_nn), *_ = np.linalg.lstsq(terms, found)
    exact = bool((np.rint(terms @ (of_nd, of_nn)) == found).all())
    return Claim(
        "Traffic",
        "naive attention moves",
        "Theta(N d + N^2)",
        f"{of_nd:.2f} N d + {of_nn:.2f} N^2{', to the element' if exact else ''}",
        finding(counts.right and exact and min(of_nd, of_nn) >= 1),
        f"fitted to the counts of {len(runs)} runs",
    )


def tiled_law(counts: Counts) -> Claim:
    """Theta(N^2 d^2 / M)."""
    claimed = (2, 2, -1)
    terms = np.log([(run.n, run.dim, run.needed, math.e) for run in counts.tiled])
    found = np.log([run.machine.traffic for run in counts.tiled])
    fitted, *_ = np.linalg.lstsq(terms, found)
    near = all(abs(a - b) < _EXPONENT for a, b in zip(fitted, claimed, strict=False))
    ratios = [run.machine.traffic * run.needed / (run.n * run.dim) ** 2 for run in counts.tiled]
    return Claim(
        "Traffic",
        "tiled attention moves, with M on the chip",
        "Theta(N^2 d^2 / M)",
        f"N^{fitted[0]:.2f} d^{fitted[1]:.2f} M^{fitted[2]:.2f}; "
        f"{min(ratios):.1f} to {max(ratios):.1f} times N^2 d^2 / M",
        finding(False, counts.right and near),
        f"exponents fitted to {counts.grid}; M is what was alive on the chip at once",
        "M is well below N d; beyond, q, k, v and o cross once: Theta(N d)",
    )


def same_products(counts: Counts) -> Claim:
    """The multiply-adds of both products are the same; rescaling comes on top."""
    same = all(a.machine.multiply_adds == b.machine.multiply_adds for a, b in counts.pairs)
    one, other = counts.pairs[-1]
    more = [b.machine.flops / a.machine.flops - 1 for a, b in counts.pairs]
    equal = max(map(abs, more)) == 0
    return Claim(
        "Traffic",
        "FLOPs are identical",
        "equal, exactly",
        f"multiply-adds {one.machine.multiply_adds:,} and {other.machine.multiply_adds:,} at "
        f"N {other.n:,}, d {other.dim}; all operations {_signed(min(more))} to "
        f"{_signed(max(more))}",
        finding(counts.right and same and equal, counts.right and same),
        f"counted, {counts.grid}, blocks of d / 2 keys",
        "the two matrix products are meant: tiling adds a rescaling of acc for each block of keys",
    )


def bytes_ratio(counts: Counts, factor: float = 2.0) -> Claim:
    """Bytes fall by about M / d^2 where N is large."""
    found = [a.machine.traffic / b.machine.traffic / (b.needed / b.dim**2) for a, b in counts.pairs]
    falls = [a.machine.traffic / b.machine.traffic for a, b in counts.pairs]
    long = all(within_factor(x, 1.0, factor) for x in found)
    return Claim(
        "Traffic",
        "for long sequences the bytes fall by roughly",
        "M / d^2",
        f"{min(found):.2f} to {max(found):.2f} times M / d^2 "
        f"({min(falls):.1f} to {max(falls):.0f} times fewer)",
        finding(False, counts.right and long),
        f"counted, {counts.grid}; roughly is within a factor of {factor:g}",
        "M counts elements, not bytes, and is above d^2 and well below N d",
        _table(counts),
    )


def causal_skip(tiled: Tiled = tiled, lengths: Sequence[int] = (64, 256, 1024, 2048)) -> Claim:
    """Skipping hidden blocks halves the work, as N outgrows the block."""
    block, dim, claimed, close = 64, 16, 2.0, 0.1
    runs = [
        tuple(run_tiled(tiled, n, dim, block, block, causal) for causal in (False, True))
        for n in lengths
    ]
    work = [a.machine.multiply_adds / b.machine.multiply_adds for a, b in runs]
    reads = [_loads(a) / _loads(b) for a, b in runs]
    right = all(run.right for pair in runs for run in pair)
    near = [n for n, x in zip(lengths, work, strict=True) if claimed - close < x <= claimed]
    rises = bool(near) and near == list(lengths[-len(near) :]) and right
    return Claim(
        "Traffic",
        "causal blocks that are hidden are skipped before any load: close to",
        f"{claimed:g} times less",
        "multiply-adds "
        + ", ".join(f"{x:.2f} at N {n:,}" for n, x in zip(lengths, work, strict=True))
        + f"; loads of k and v {reads[-1]:.2f}",
        finding(right and len(near) == len(lengths), rises),
        f"counted with and without the mask, blocks of {block}, d {dim}; close is within {close:g}",
        f"N is many blocks, {min(near, default=0) // block} or more here: 2 / (1 + block / N)",
    )


def _table(counts: Counts) -> tuple[tuple[str, ...], ...]:
    """The exact counts: elements that crossed, and multiply-adds."""
    header = ("N", "d", "M", "naive", "tiled", "naive / tiled", "M / d^2", "multiply-adds, naive",
              "tiled")  # fmt: skip
    rows = [
        (
            f"{b.n:,}",
            f"{b.dim}",
            f"{b.needed:,}",
            f"{a.machine.traffic:,}",
            f"{b.machine.traffic:,}",
            f"{a.machine.traffic / b.machine.traffic:.2f}",
            f"{b.needed / b.dim**2:.2f}",
            f"{a.machine.multiply_adds:,}",
            f"{b.machine.multiply_adds:,}",
        )
        for a, b in counts.pairs
    ]
    return header, *rows


def _loads(run: Run) -> int:
    return run.machine.reads["k"] + run.machine.reads["v"]


def _range(values: Sequence[int]) -> str:
    return f"{values[0]:,} to {values[-1]:,}"


def _signed(x: float) -> str:
    return f"{'-' if x < 0 else '+'}{number(abs(100 * x))} %"
