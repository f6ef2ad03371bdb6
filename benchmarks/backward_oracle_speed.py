"""How fast the backward's oracle is, beside a plain loop over the definition in mpmath.

    python benchmarks/backward_oracle_speed.py

One problem: 16 queries, 1024 keys, head size 64, bfloat16. The loop is timed on whole rows,
forward and backward, at 50 digits, and scaled to all of them by the number of multiplications.
The oracle's time covers all three gradients and their radii, which have to be at most 1/100
of the bound wherever that is finite; it does not cover the bound. Best of several runs.
"""

from __future__ import annotations

import time

import mpmath
import numpy as np

from flashcheck.bounds import bound
from flashcheck.bounds.backward import gradient_bound
from flashcheck.fills import Fill
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle.backward import float64
from flashcheck.oracle.float64 import attention
from flashcheck.problem import Problem

NORMAL = Fill(noise="normal", spread=1.0)
PROBLEM = Problem(
    dtype="bfloat16", len_q=16, len_k=1024, dim=64, dim_v=64, q=NORMAL, k=NORMAL, v=NORMAL
)  # fmt: skip
ROWS = 1
REPEATS = 20


def loop(x: Inputs, dout: Array, rows: int) -> tuple[list[list[float]], float]:
    """dq of the first rows, and what they give to dk and dv, by plain loops; seconds taken."""
    mp = mpmath.mp.clone()
    mp.dps = 50
    n, d = x.k.shape[2:]
    dv = x.v.shape[3]
    q, k, v, go = (
        [[mp.mpf(float(c)) for c in row] for row in t[0, 0]] for t in (x.q, x.k, x.v, dout)
    )
    scale = 1 / mp.sqrt(d)
    dk = [[mp.mpf(0)] * d for _ in range(n)]
    dv_ = [[mp.mpf(0)] * dv for _ in range(n)]
    dqs = []
    start = time.perf_counter()
    for i in range(rows):
        s = [scale * sum(a * b for a, b in zip(q[i], k[j], strict=True)) for j in range(n)]
        m = max(s)
        w = [mp.exp(y - m) for y in s]
        l = sum(w)
        p = [y / l for y in w]
        dp = [sum(a * b for a, b in zip(go[i], v[j], strict=True)) for j in range(n)]
        delta = sum(a * b for a, b in zip(p, dp, strict=True))
        ds = [a * (b - delta) for a, b in zip(p, dp, strict=True)]
        dqs.append([scale * sum(ds[j] * k[j][c] for j in range(n)) for c in range(d)])
        for j in range(n):
            scaled = scale * ds[j]
            for c in range(d):
                dk[j][c] += scaled * q[i][c]
            for e in range(dv):
                dv_[j][e] += p[j] * go[i][e]
    seconds = time.perf_counter() - start
    return [[float(c) for c in row] for row in dqs], seconds


def main() -> None:
    x = PROBLEM.inputs()
    dout = NORMAL.evaluate((*x.q.shape[:3], x.v.shape[3]), FORMATS[x.dtype], 1)
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        at = attention(x)
        back = float64.backward(x, dout, at)
        times.append(time.perf_counter() - start)
    oracle = min(times)
    limit = gradient_bound(x, dout, at, back, bound(x, at, Contract()), Contract())
    share = 0.0
    for name in ("dq", "dk", "dv"):
        share = max(share, float((getattr(back, name).radius / getattr(limit, name)).max()))
    assert share <= 0.01, "the radius is not fine enough for the bound"
    dq, seconds = loop(x, dout, ROWS)
    exact = back.dq.value[0, 0, :ROWS]
    radius = back.dq.radius[0, 0, :ROWS] + 2.0**-52 * np.abs(exact)  # dq is rounded to float64
    assert (np.abs(dq - exact) <= radius).all(), "the loop's gradients are outside the radius"
    # Every row takes the same multiplications: rows are the exact share of the work.
    plain = seconds * x.q.shape[2] / ROWS
    print(f"oracle {oracle * 1e3:.2f} ms, best of {REPEATS}; radius {share:.1e} of the bound")
    backend = mpmath.libmp.BACKEND
    print(
        f"mpmath ({backend}) {plain:.1f} s, from {seconds:.1f} s for {ROWS} of {x.q.shape[2]} rows"
    )
    print(f"{plain / oracle:,.0f} times faster")


if __name__ == "__main__":
    main()
