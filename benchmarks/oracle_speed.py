"""What the oracle and the bound cost, against mpmath and Arb, on one problem in one run.

    pip install --group bench && OMP_NUM_THREADS=1 python benchmarks/oracle_speed.py

The problem: 16 queries, 1,024 keys, head size 64, bfloat16, normal noise. The mpmath loop is
the definition as one would write it, at 50 digits; Arb's is a matrix of balls at 128 bits.
The oracle's time includes who sees whom, and not the bound.

Only ratios mean anything on another machine. Each is the median over 16 rounds, with the
quarters around it; a round times every side at about the same moment, mpmath on one of the 16
rows. Times are of the processor, so that what else runs counts little.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mpmath
import numpy as np

from flashcheck.bounds import bound
from flashcheck.fills import Fill
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle import float64
from flashcheck.problem import Problem

NORMAL = Fill(noise="normal", spread=1.0)
PROBLEM = Problem(
    dtype="bfloat16", len_q=16, len_k=1024, dim=64, dim_v=64, q=NORMAL, k=NORMAL, v=NORMAL
)


def timed(function: Callable[[], Any], times: int) -> tuple[float, Any]:
    """Processor seconds of one call, over several, and what the last one returned."""
    result = None
    start = time.process_time()
    for _ in range(times):
        result = function()
    return (time.process_time() - start) / times, result


def by_mpmath(x: Inputs) -> Iterator[Callable[[], list[Any]]]:
    """For each query of the first head what computes its row of out, [Dv]."""
    mpmath.mp.dps = 50
    q, k, v = ([[mpmath.mpf(e) for e in row] for row in t[0, 0].tolist()] for t in (x.q, x.k, x.v))
    scale = 1 / mpmath.sqrt(len(q[0]))

    def row(q_i: list[Any]) -> list[Any]:
        scores = [scale * sum(a * b for a, b in zip(q_i, k_j, strict=True)) for k_j in k]
        top = max(scores)
        weights = [mpmath.exp(s - top) for s in scores]
        total = sum(weights)
        return [
            sum(w * v_j[e] for w, v_j in zip(weights, v, strict=True)) / total
            for e in range(len(v[0]))
        ]

    return (partial(row, q_i) for q_i in q)


def by_arb(x: Inputs) -> Any:
    """out as a matrix of balls [Lq, Dv] of the first head."""
    import flint

    flint.ctx.prec = 128
    q, k, v = (flint.arb_mat(t[0, 0].tolist()) for t in (x.q, x.k, x.v))
    scale = 1 / flint.arb(x.q.shape[3]).sqrt()
    s = q * k.transpose() * scale
    rows = []
    for i in range(s.nrows()):
        row = [s[i, j] for j in range(s.ncols())]
        top = max(row, key=float)
        rows.append([(score - top).exp() for score in row])
    out = flint.arb_mat(rows) * v
    return [[out[i, e] / sum(rows[i]) for e in range(out.ncols())] for i in range(out.nrows())]


def times_the_oracle(other: list[float], oracle: list[float]) -> str:
    """The median of the rounds' ratios, and the quarters around it."""
    low, middle, high = np.quantile(np.array(other) / oracle, (0.25, 0.5, 0.75))
    return f"{middle:,.{0 if middle > 100 else 1}f} times the oracle ({low:,.1f} to {high:,.1f})"


def main() -> int:
    x = PROBLEM.inputs()
    at = float64.attention(x)
    allowed = bound(x, at, Contract())
    share = float((at.out_radius / allowed.out).max())
    share = max(share, float((at.lse_radius / allowed.lse).max()))
    arb = importlib.util.find_spec("flint") is not None
    exact: list[list[Any]] = []
    oracle, bounds, loop, balls = ([] for _ in range(4))
    for row in by_mpmath(x):
        seconds, result = timed(row, 1)
        exact.append(result)
        loop.append(seconds * x.q.shape[2])
        oracle.append(timed(lambda: float64.attention(x.with_()), 50)[0])
        bounds.append(timed(lambda: bound(x, at, Contract()), 10)[0])
        if arb:
            balls.append(timed(lambda: by_arb(x), 1)[0])
    off = np.abs(np.array([[float(e) for e in row] for row in exact]) - at.out[0, 0])
    inside = bool((off <= at.out_radius[0, 0] + 2.0**-52 * np.abs(at.out[0, 0])).all())
    print(f"oracle: {np.median(oracle) * 1e3:.2f} ms; radius at most {share:.1e} of the bound")
    print(f"mpmath loop: {times_the_oracle(loop, oracle)}; float64 is off by {off.max():.1e}")
    print(f"mpmath's value is {'inside' if inside else 'OUTSIDE'} the radius")
    print(f"bound: {times_the_oracle(bounds, oracle)}")
    if arb:
        print(f"Arb: {times_the_oracle(balls, oracle)}")
    else:
        print("Arb: not measured (pip install --group bench)")
    return 0 if inside and share <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
