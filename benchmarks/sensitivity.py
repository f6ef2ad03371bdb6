"""The smallest relative error that the bound sees, beside what other projects' tests see.

    python benchmarks/sensitivity.py > reports/bound/sensitivity.md

On a correct kernel's output (FlashAttention's arithmetic, `fp32_stats`) a relative error is
injected: in one element, in one row, everywhere; and the result rounded to its dtype again. The
figure is the smallest power of sqrt(2) from which on every one is seen, the median over the
problems. An error below the rounding of the output cannot be seen by anyone. 0 is a false alarm:
the criterion rejects the correct output itself.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from page import head
from policies import POLICIES, Seen

from flashcheck.bounds import bound
from flashcheck.call import Call
from flashcheck.families import SCORES, VALUES
from flashcheck.formats import FORMATS, Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle import float64
from flashcheck.problem import Problem
from flashcheck.worker import InProcess

DTYPES = ("float32", "float16", "bfloat16")
SIZES = (1.0, 3.0, 9.0)
ERRORS = tuple(2.0 ** (e / 2) for e in range(8, -49, -1))
PLACES = ("one element", "one row", "everywhere")


def problems(dtype: str) -> list[Problem]:
    """Every family of scores with normal values, and normal scores with every family of V."""
    outline = Problem(dtype=dtype, len_q=16, len_k=256, dim=64, dim_v=64)
    pairs = [(s, "normal") for s in SCORES if s != "special"]
    pairs += [("normal", v) for v in VALUES if v not in ("normal", "special")]
    found = []
    for seed, (scores, values) in enumerate(pairs):
        for size in SIZES:
            q, k = SCORES[scores](outline, size, 8, 1.0)
            v = VALUES[values](outline, 1.0, 0)
            found.append(replace(outline, q=q, k=k, v=v, seed=seed, scores=scores, values=values))
    return found


def plain(x: Inputs) -> Array:
    """torch's own operators, each in the dtype: what the tests call the plain implementation."""
    q, k, v = (torch.from_numpy(t).to(getattr(torch, x.dtype)) for t in (x.q, x.k, x.v))
    out = torch.softmax(q @ k.mT * x.exact_scale, -1) @ v
    return np.asarray(out.double().numpy())


def places(shape: tuple[int, ...], seed: int) -> dict[str, list[Bools]]:
    """Where an error is injected: a few elements, a few rows, everywhere."""
    rng = np.random.default_rng(seed)
    rows, elements = [], []
    for _ in range(5):
        row, element = np.zeros(shape, bool), np.zeros(shape, bool)
        i, d = rng.integers(shape[2]), rng.integers(shape[3])
        row[0, 0, i], element[0, 0, i, d] = True, True
        rows.append(row)
        elements.append(element)
    return dict(zip(PLACES, (elements, rows, [np.ones(shape, bool)]), strict=True))


def smallest(
    sees: Callable[[Array], bool], out: Array, where: Bools, round_: Callable[..., Array]
) -> float:
    """The smallest error from which on all are seen; inf for none, 0 for a false alarm."""
    if sees(out):
        return 0.0
    last = np.inf
    for error in ERRORS:
        if not sees(round_(np.where(where, out * (1 + error), out))):
            return last
        last = error
    return last


def measure(dtype: str) -> tuple[dict[tuple[str, str], list[float]], dict[str, int], int]:
    """Errors seen by (criterion, place); false alarms by criterion; how many problems."""
    seen_at: dict[tuple[str, str], list[float]] = defaultdict(list)
    alarms: dict[str, int] = defaultdict(int)
    all_problems = problems(dtype)
    with InProcess("fp32_stats") as runner:
        for number, problem in enumerate(all_problems):
            x = problem.inputs()
            at = float64.attention(x)
            allowed = bound(x, at, Contract()).out
            fmt = FORMATS[dtype]
            out = runner.call(Call(x, "64x64")).outs[0]
            shown = Seen(fmt, at.out, fmt.round(at.out), plain(x))
            criteria: dict[str, Callable[[Array], bool]] = {
                "flashcheck": lambda y, a=allowed, e=at.out: bool((np.abs(y - e) > a).any())
            }
            for name, policy in POLICIES.items():
                criteria[name] = lambda y, p=policy, s=shown: not p(y, s)
            for name, sees in criteria.items():
                alarms[name] += sees(out)
                for place, wheres in places(out.shape, number).items():
                    errors = [smallest(sees, out, w, fmt.round) for w in wheres]
                    seen_at[name, place].append(float(np.median(errors)))
    return seen_at, alarms, len(all_problems)


def main() -> None:
    head(__doc__)
    for dtype in DTYPES:
        seen_at, alarms, count = measure(dtype)
        print(f"\n## {dtype}: unit roundoff {FORMATS[dtype].unit_roundoff:.1e}, {count} problems\n")
        print(f"| criterion | {' | '.join(PLACES)} | correct outputs rejected |")
        print("|---|---:|---:|---:|---:|")
        for name in ["flashcheck", *POLICIES]:
            figures = [np.median(seen_at[name, place]) for place in PLACES]
            shown = " | ".join("none" if np.isinf(f) else f"{f:.1e}" for f in figures)
            print(f"| {name} | {shown} | {alarms[name]} |")


if __name__ == "__main__":
    sys.exit(main())
