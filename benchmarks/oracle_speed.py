"""What the oracle and the bound cost, against mpmath and Arb, on one problem in one run.

    pip install --group bench && python benchmarks/oracle_speed.py

The problem: 16 queries, 1,024 keys, head size 64, bfloat16, normal noise. The mpmath loop is
the definition as one would write it, at 50 digits; Arb's is a matrix of balls at 128 bits.
Times are the best of several; only their ratios mean anything on another machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
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


def best(function: Callable[[], Any], times: int) -> tuple[float, Any]:
    """Seconds of the fastest of several calls, and what the last one returned."""
    seconds, result = [], None
    for _ in range(times):
        start = time.perf_counter()
        result = function()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


def by_mpmath(x: Inputs) -> list[list[Any]]:
    """out [Lq][Dv] of the first head."""
    mpmath.mp.dps = 50
    q, k, v = ([[mpmath.mpf(e) for e in row] for row in t[0, 0].tolist()] for t in (x.q, x.k, x.v))
    scale = 1 / mpmath.sqrt(len(q[0]))
    rows = []
    for q_i in q:
        scores = [scale * sum(a * b for a, b in zip(q_i, k_j, strict=True)) for k_j in k]
        top = max(scores)
        weights = [mpmath.exp(s - top) for s in scores]
        total = sum(weights)
        rows.append(
            [sum(w * v_j[e] for w, v_j in zip(weights, v, strict=True)) / total
             for e in range(len(v[0]))]
        )  # fmt: skip
    return rows


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


def main() -> int:
    x = PROBLEM.inputs()
    seconds, at = best(lambda: float64.attention(x), 200)
    bound_seconds, allowed = best(lambda: bound(x, at, Contract()), 50)
    share = float((at.out_radius / allowed.out).max())
    share = max(share, float((at.lse_radius / allowed.lse).max()))
    slow, exact = best(lambda: by_mpmath(x), 1)
    off = np.abs(np.array([[float(e) for e in row] for row in exact]) - at.out[0, 0])
    print(f"float64 tier: {seconds * 1e3:.2f} ms; radius at most {share:.1e} of the bound")
    print(f"mpmath loop: {slow / seconds:,.0f} times that; float64 is off by {off.max():.1e}")
    inside = bool((off <= at.out_radius[0, 0] + 2.0**-52 * np.abs(at.out[0, 0])).all())
    print(f"mpmath's value is {'inside' if inside else 'OUTSIDE'} the radius")
    print(f"bound: {bound_seconds / seconds:.1f} times the float64 tier")
    try:
        balls, _ = best(lambda: by_arb(x), 5)
        print(f"Arb: {balls / seconds:,.0f} times the float64 tier")
    except ImportError:
        print("Arb: not measured (pip install --group bench)")
    return 0 if inside and share <= 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
