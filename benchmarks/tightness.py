"""How near correct kernels come to the default bound and to that of what they declare.

    python benchmarks/tightness.py > reports/bound/tightness.md

Of each problem the largest error / bound of its elements; then the median, the 90th percentile
and the maximum over the problems. The error is counted as in a check: less the oracle's radius.
A ratio near 1 means that the bound could not be smaller, one near 0 that errors of the size of
the bound are never made. The problems are every family of scores with three families of V, three
sizes of scores and three lengths, their seeds counted up; the declared contracts are what the
kernels really keep.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace

import numpy as np
from page import head

from flashcheck import oracle
from flashcheck.bounds import bound
from flashcheck.call import Call
from flashcheck.families import SCORES, VALUES
from flashcheck.formats import DTYPES, FORMATS, Array
from flashcheck.kernel import Contract
from flashcheck.oracle import float64
from flashcheck.problem import Problem
from flashcheck.worker import InProcess

CONFIGS = {"fp32_stats": "64x64", "numpy_online": "block_64"}
OUTPUTS = ("out", "lse")

Ratios = dict[tuple[str, str, str], list[float]]
"""By (family of scores, output, contract), one for each problem."""


def problems(dtype: str) -> Iterator[Problem]:
    seed = 0
    for scores in SCORES:
        for values in ("normal", "positive", "cancelling"):
            for length, dim in ((17, 64), (128, 16), (513, 128)):
                for nats in (1.0, 9.0, 80.0):
                    p = Problem(
                        dtype=dtype, len_q=8, len_k=length, dim=dim, dim_v=16, seed=seed,
                        scores=scores, values=values,
                    )  # fmt: skip
                    q, k = SCORES[scores](p, nats, 8, 1.0)
                    yield replace(p, q=q, k=k, v=VALUES[values](p, 1.0, 0))
                    seed += 1


def declared(kernel: str, dtype: str) -> Contract:
    """What the kernel keeps beyond the default: blocks of 64 keys, exp(s - m) to 4 ulp, and for
    numpy_online a P that is never rounded to half precision."""
    contract = Contract(kv_block=64, exp_form="exp")
    if dtype == "float64":
        return contract
    contract = replace(contract, exp_error=2.0**-21)
    half = FORMATS[dtype].precision < 24
    return replace(contract, p_dtype="float32") if half and kernel == "numpy_online" else contract


def largest(error: Array, limit: Array) -> float:
    """The largest error / limit where there is a limit."""
    judged = np.isfinite(limit) & (limit > 0)
    return float(np.max(np.maximum(error, 0.0)[judged] / limit[judged], initial=0.0))


def measure(kernel: str, dtype: str) -> Ratios:
    found: Ratios = defaultdict(list)
    contracts = {"default": Contract(), "declared": declared(kernel, dtype)}
    with InProcess(kernel) as runner:
        for problem in problems(dtype):
            x = problem.inputs()
            at = float64.attention(x)
            bounds = {name: bound(x, at, contract) for name, contract in contracts.items()}
            narrow = bounds["declared"]
            value = oracle.evaluate(x, at, narrow.out, narrow.lse)
            reply = runner.call(Call(x, CONFIGS[kernel]))
            errors = {
                "out": np.abs((reply.outs[0] - value.out) - value.out_low) - value.out_radius,
                "lse": np.abs((reply.lses[0] - value.lse) - value.lse_low) - value.lse_radius,
            }
            for name, b in bounds.items():
                for output, limit in zip(OUTPUTS, (b.out, b.lse), strict=True):
                    ratio = largest(errors[output], limit)
                    found[problem.scores, output, name].append(ratio)
                    found["all", output, name].append(ratio)
    return found


def figures(ratios: list[float]) -> str:
    median, p90, top = np.quantile(ratios, (0.5, 0.9, 1.0))
    return f"{median:.4f} | {p90:.4f} | {top:.4f}"


def main() -> int:
    head(__doc__)
    measured = {(k, d): measure(k, d) for k in CONFIGS for d in DTYPES}
    print("| kernel | dtype | output | default: median | declared: median | median gain |")
    print("|---|---|---|---:|---:|---:|")
    for (kernel, dtype), found in measured.items():
        for output in OUTPUTS:
            a, b = (np.array(found["all", output, name]) for name in ("default", "declared"))
            gain = np.median(b[a > 0] / a[a > 0])
            medians = f"{np.median(a):.4f} | {np.median(b):.4f}"
            print(f"| {kernel} | {dtype} | {output} | {medians} | {gain:.2f} |")
    worst = 0.0
    for (kernel, dtype), found in measured.items():
        changed = asdict(declared(kernel, dtype))
        said = ", ".join(f"{n}={v!r}" for n, v in changed.items() if v != asdict(Contract())[n])
        print(f"\n## {kernel}, {dtype}: {len(found['all', 'out', 'default'])} problems\n")
        print(f"Declared: {said}.\n")
        print("| scores | output | default: median | p90 | max | declared: median | p90 | max |")
        print("|---|---|---:|---:|---:|---:|---:|---:|")
        for scores in (*SCORES, "all"):
            for output in OUTPUTS:
                columns = [found[scores, output, name] for name in ("default", "declared")]
                print(f"| {scores} | {output} | {' | '.join(map(figures, columns))} |")
                worst = max(worst, *(max(c) for c in columns))
    return int(worst > 1)  # a false alarm


if __name__ == "__main__":
    sys.exit(main())
