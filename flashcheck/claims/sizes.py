"""Sizes and times of the score matrix on a stated device: arithmetic on counted passes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashcheck.claims.claim import Claim, finding, same_digits
from flashcheck.claims.machine import Machine
from flashcheck.claims.tiling import Naive, naive, run_naive, softmax
from flashcheck.claims.traffic import Counts

N = 8192
HEADS = 64
BYTES = 2
"""Of an element: bfloat16 and float16."""

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """Data sheet figures: dense bfloat16 FLOP/s, bytes/s, bytes of L2 and of shared memory."""

    name: str
    flops: float
    bandwidth: float
    cache: int

    @property
    def ridge(self) -> float:
        """FLOPs for each byte above which the arithmetic, not the memory, is what limits."""
        return self.flops / self.bandwidth


H100 = Device("H100 SXM", flops=989.4e12, bandwidth=3.35e12, cache=50 * MIB)


def matrix_per_head(n: int = N, claimed: str = "128") -> Claim:
    size = n * n * BYTES / MIB
    return Claim(
        "Sizes",
        f"S of one head at N = {n:,} in {BYTES} bytes",
        f"{claimed} MiB",
        f"{size:g} MiB",
        finding(same_digits(size, claimed)),
        f"{n:,} x {n:,} x {BYTES}",
    )


def matrix_per_layer(heads: int = HEADS, claimed: str = "8") -> Claim:
    size = heads * N * N * BYTES / GIB
    return Claim(
        "Sizes",
        f"S of {heads} heads",
        f"{claimed} GiB",
        f"{size:g} GiB",
        finding(same_digits(size, claimed)),
        f"{heads} x {N:,} x {N:,} x {BYTES}",
    )


def score_time(counts: Counts, device: Device = H100, claimed: str = "10") -> Claim:
    """Time to move S and P as often as the naive kernel was counted to."""
    run = max(counts.naive.values(), key=lambda run: run.n)
    moved = sum((run.machine.reads + run.machine.writes)[name] for name in "sp") / run.n**2
    seconds = moved * HEADS * N * N * BYTES / device.bandwidth
    return Claim(
        "Sizes",
        f"score traffic of {HEADS} heads at {device.bandwidth / 1e12:g} TB/s",
        f"about {claimed} ms",
        f"{1e3 * seconds:.2f} ms",
        finding(same_digits(1e3 * seconds, claimed)),
        f"{moved:g} counted passes over {HEADS} x {N:,} x {N:,} x {BYTES} bytes",
    )


def ridge(device: Device = H100, claimed: str = "295") -> Claim:
    return Claim(
        "Sizes",
        f"the ridge of an {device.name}",
        f"{claimed} FLOPs/byte",
        f"{device.ridge:.1f} FLOPs/byte",
        finding(same_digits(device.ridge, claimed)),
        f"data sheet: {device.flops / 1e12:g} TFLOP/s dense bfloat16, "
        f"{device.bandwidth / 1e12:g} TB/s",
    )


def softmax_intensity(device: Device = H100, few: float = 10, far: float = 10) -> Claim:
    """FLOPs for each byte of the pass from S to P."""
    machine, n = Machine(), 256
    s, p = machine.memory("s", np.ones((n, n))), machine.memory("p", np.empty((n, n)))
    softmax(s, p)
    found = machine.flops / (machine.traffic * BYTES)
    return Claim(
        "Sizes",
        "the softmax pass does a few FLOPs per byte, far below the ridge",
        f"below {few:g}, and {far:g} times below {device.ridge:.0f}",
        f"{found:.2f} FLOPs/byte, {device.ridge / found:.0f} times below",
        finding(found < few and found * far < device.ridge),
        f"counted on {n} rows of {n}: maximum, difference, exp, sum and quotient, one each; "
        f"{BYTES} bytes read and {BYTES} written for each",
    )


def bound_by_bytes(kernel: Naive = naive, device: Device = H100) -> Claim:
    """Naive attention as a whole is below the ridge."""
    n, dim = 2048, 128
    run = run_naive(kernel, n, dim)
    found = run.machine.flops / (BYTES * run.machine.traffic)
    return Claim(
        "Sizes",
        "naive attention is bound by bytes",
        f"below {device.ridge:.0f} FLOPs/byte",
        f"{found:.0f} FLOPs/byte at d {dim}",
        finding(run.right and found < device.ridge),
        f"operations over bytes, counted at N {n:,}; {device.name}",
    )


def short_sequences(device: Device = H100, few: tuple[int, int] = (200, 1000)) -> Claim:
    """The longest N at which all scores of a layer fit in the cache."""
    longest = int((device.cache / (HEADS * BYTES)) ** 0.5)
    return Claim(
        "Sizes",
        "under a few hundred tokens S fits in cache, and fusing gains little",
        f"N from {few[0]} to {few[1]:,}",
        f"N up to {longest}",
        finding(few[0] <= longest <= few[1]),
        f"S of {HEADS} heads in {device.cache // MIB} MiB of L2 ({device.name}, data sheet); the "
        "gain itself needs a GPU",
    )
