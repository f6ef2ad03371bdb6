"""The same Triton kernel interpreted on the CPU and compiled on a GPU, on the same inputs.

    python benchmarks/interpreted_vs_compiled.py [TARGET] [--problems 60] [--jobs 4]

For each dtype and configuration: how many elements of `out` and `lse` have the same bits, how
many of `out` are within one ulp of each other, and the largest difference in units of what the
two bounds together allow: beyond 1 the interpreter would not be faithful, and the exit code is
1. The last columns are each side's largest error in units of its own bound. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
import torch

from flashcheck import environment
from flashcheck.case import Case
from flashcheck.formats import FORMATS, Array
from flashcheck.law import laws
from flashcheck.probe import probe
from flashcheck.strategies import drawn
from flashcheck.worker import Worker

HEADER = (
    "| dtype | configuration | problems | elements | out: same bits | within 1 ulp | of the bounds "
    "| lse: same bits | of the bounds | interpreted: error / bound | compiled: error / bound |\n"
    "|---|---|---|---|---|---|---|---|---|---|---|"
)


@dataclass
class Row:
    """What one configuration in one dtype came to."""

    dtype: str
    config: str
    problems: int = 0
    elements: int = 0
    same: int = 0
    near: int = 0
    out: float = 0.0
    rows: int = 0
    same_lse: int = 0
    lse: float = 0.0
    interpreted: float = 0.0
    compiled: float = 0.0

    def __str__(self) -> str:
        return (
            f"| {self.dtype} | {self.config} | {self.problems} | {self.elements:,} "
            f"| {self.same / self.elements:.2%} | {self.near / self.elements:.2%} | {self.out:.2g} "
            f"| {self.same_lse / self.rows:.2%} | {self.lse:.2g} "
            f"| {self.interpreted:.2f} | {self.compiled:.2f} |"
        )


def measure(target: str, dtype: str, config: str, count: int) -> Row:
    row = Row(dtype, config)
    agreement = laws()[0]
    with Worker(target, "cpu") as cpu, Worker(target, "cuda") as gpu:
        kernel = cpu.start()
        gpu.start()
        space = probe(cpu, kernel, (dtype,)).spaces[dtype]
        # The later ones are less simple.
        for problem in list(dict.fromkeys(drawn(space, 4 * count, seed=0)))[-count:]:
            pair = [
                Case(runner, kernel, problem, config, runner.device, space) for runner in (cpu, gpu)
            ]
            ratios = [agreement.check(case).ratio for case in pair]
            row.interpreted = max(row.interpreted, ratios[0])
            row.compiled = max(row.compiled, ratios[1])
            allowed = [case.exact_bound() for case in pair]
            outs = [case.out() for case in pair]
            row.problems += 1
            row.elements += outs[0].size
            row.same += int((outs[0] == outs[1]).sum())
            off = np.abs(outs[0] - outs[1])
            size = np.maximum(*map(np.abs, outs))
            row.near += int((off <= FORMATS[dtype].ulp(size)).sum())
            row.out = max(row.out, share(off, allowed[0].out + allowed[1].out))
            lses = [case.lse() for case in pair]
            if lses[0] is None or lses[1] is None:
                continue
            same = np.asarray(lses[0] == lses[1])
            row.rows += same.size
            row.same_lse += int(same.sum())
            off = np.abs(np.subtract(*lses, where=~same, out=np.zeros(same.shape)))
            row.lse = max(row.lse, share(off, allowed[0].lse + allowed[1].lse))
    return row


def share(off: Array, allowed: Array) -> float:
    """The largest off / allowed, 0 where nothing is off."""
    return float(np.max(off / np.where(off == 0, 1.0, allowed), initial=0))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("target", nargs="?", default="triton_flash")
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=4)
    given = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch sees no CUDA device: run it on a machine with a GPU")
    with Worker(given.target, "cpu") as worker:
        kernel = worker.start()
    configs = [c for c in kernel.configs if c is not None]
    dtypes = kernel.kernel.dtypes or ("float32", "float16", "bfloat16")
    cells = [(given.target, d, c, given.problems) for d in dtypes for c in configs]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(measure, *zip(*cells, strict=True)))
    print(f"# {given.target}: interpreted and compiled\n")
    print(f"    python benchmarks/interpreted_vs_compiled.py {' '.join(sys.argv[1:])}\n")
    print(HEADER)
    print("\n".join(map(str, rows)))
    print("\n" + "\n".join(f"- {line}" for line in environment.lines(environment.collect("cuda"))))
    return 1 if max(max(r.out, r.lse) for r in rows) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
