"""No correct kernel is failed, whatever its style, its dtype and the options of the call.

    python benchmarks/soundness.py --problems 100000 --report md=reports/bound/soundness_options.md

flashcheck's own strategies draw the problems, to which options of the contract are added that
are legal together. A correct kernel whose style is drawn too (`styles.py`, sometimes with what
it declares), and on problems that are not too large a correct backward (`backward_styles.py`),
compute it with the roundings of its dtype. A violation is an error, less the oracle's radius,
above the bound, and NaN or infinity where the bound is finite. `--only TASK:INDEX` runs a single
problem and says all about it. On one problem in eight a kernel with a mistake runs as well: where
none of them were caught this page would say nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import backward_styles
import hypothesis
import numpy as np
import styles
from backward_styles import DOUTS, Case, Edge
from page import head

from flashcheck import (
    oracle,
    threads,  # before NumPy
)
from flashcheck.bounds import Bound, bound
from flashcheck.bounds.backward import gradient_bound
from flashcheck.families import SCORES, VALUES
from flashcheck.formats import DTYPES, FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.oracle import backward, float64
from flashcheck.oracle.backward.float64 import backward as float64_backward
from flashcheck.problem import Problem
from flashcheck.strategies import Space, drawn

PER_TASK = 200
SMALL = Space(max_length=130, work=40_000, max_heads=24)
LARGE = Space(max_length=513, work=150_000, max_heads=24)
GRADIENTS = {"float64": 1000}
"""The work up to which gradients are judged: for float64 they are evaluated in mpmath."""
FAULTS = (
    "delta omitted", "LSE rounded", "last dQ block lost", "wrong head map",
    "scale applied twice", "dS not masked", "slope of softcap", "dK scale",
)  # fmt: skip
SOFTCAPS = (50.0, 30.0, 20.0, 15.0, 5.0, 1.0, 0.3, 1e-3, 1e4)
OPTIONS = {
    "scale 0", "scale < 0", "scale > 0", "is_causal", "attn_mask", "enable_gqa", "softcap",
    "alibi_slopes", "sinks", "window",
}  # fmt: skip
SIDES = (-1, -1, 0, 1, 2, 3, 5, 8, 16, 31, 64, 127, 1000)


def with_options(x: Inputs, rng: np.random.Generator) -> Inputs:
    """x with a drawn combination of window, softcap, alibi_slopes and sinks."""

    def pick(choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    def float32(values: Array) -> Array:
        return FORMATS["float32"].round(values)

    heads, changes = x.q.shape[1], dict[str, Any]()
    if rng.random() < 0.35:
        changes["softcap"] = pick(SOFTCAPS)
    if rng.random() < 0.35:
        slopes = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
        changes["alibi_slopes"] = float32(slopes * pick((1.0, 1.0, 1.0, 4.0, -1.0, 0.1, 100.0)))
    if rng.random() < 0.35:
        sinks = rng.normal(size=heads) * pick((1.0, 1.0, 8.0, 60.0, 1e4)) + pick((0.0, 0.0, -50.0))
        changes["sinks"] = float32(sinks)
    if rng.random() < 0.4:
        changes["window"] = (pick(SIDES), pick(SIDES))
    # is_causal begins top-left, the others bottom-right: together where both are the same, or
    # where the kernel declares one alignment for all.
    if x.is_causal and x.q.shape[2] != x.k.shape[2]:
        changes["bottom_right"] = bool({"alibi_slopes", "window"} & {*changes}) or pick((0, 1)) == 1
    return x.with_(**changes)


def features(x: Inputs, p: Problem) -> Iterator[str]:
    """The options of a call, and what is special about it."""
    yield "any"
    if x.scale is not None:
        yield "scale 0" if x.scale == 0 else "scale < 0" if x.scale < 0 else "scale > 0"
    if x.is_causal:
        yield "is_causal, bottom-right" if x.bottom_right else "is_causal"
    if p.mask is not None:
        kind = p.mask.kind
        yield "attn_mask, bool" if kind == "bool" else f"attn_mask, additive, {p.mask.dtype}"
    if x.heads_per_kv > 1:
        yield "enable_gqa"
    for name in ("softcap", "alibi_slopes", "sinks"):
        if (value := getattr(x, name)) is not None and np.any(value):
            yield name
    if x.window != (-1, -1):
        yield "window"
        if x.q.shape[2] != x.k.shape[2]:
            yield "window, Lq != Lk"
    if not x.k.shape[2]:
        yield "Lk = 0"
    elif not x.visible.any(-1).all():
        yield "a row that sees no key"


# -- judging -------------------------------------------------------------------------------


@dataclass
class Tally:
    """Counts and largest ratios by (table, row, ...), and violations."""

    counts: Counter[tuple[str, ...]] = field(default_factory=Counter)
    largest: dict[tuple[str, ...], float] = field(default_factory=lambda: defaultdict(float))
    violations: list[str] = field(default_factory=list)

    def add(self, *key: str, ratio: float | None = None, by: int = 1) -> None:
        self.counts[key] += by
        if ratio is not None:
            self.largest[key] = max(self.largest[key], ratio)

    def join(self, other: Tally) -> None:
        self.counts.update(other.counts)
        for key, ratio in other.largest.items():
            self.largest[key] = max(self.largest[key], ratio)
        self.violations += other.violations


@dataclass
class Worst:
    """The element of one result that is nearest to its bound, or furthest beyond."""

    output: str
    ratio: float = 0.0
    said: str = ""


def worst(output: str, got: Array, exact: Array, low: Array, radius: Array, limit: Array) -> Worst:
    judged = np.isfinite(limit)
    if not judged.any():
        return Worst(output)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where(got == exact, 0.0, np.abs((got - exact) - low) - radius)
        error = np.where(np.isnan(error), np.inf, error)
        ratio = np.where(judged & (error > 0), error / limit, 0.0)
    at = np.unravel_index(int(ratio.argmax()), ratio.shape)
    place = [int(i) for i in at]
    said = f"{output}{place} is {got[at]:.9g}, exact {exact[at]:.9g}, bound {limit[at]:.3g}"
    return Worst(output, float(ratio[at]), said)


def forward(x: Inputs, style: styles.Style) -> tuple[list[Worst], Bound]:
    out, lse = styles.attention(x, style)
    at = float64.attention(x)
    b = bound(x, at, style.contract)
    value = oracle.evaluate(x, at, b.out, b.lse, out, lse)
    found = [worst("out", out, value.out, value.out_low, value.out_radius, b.out)]
    if style.judges_lse:
        found.append(worst("lse", lse, value.lse, value.lse_low, value.lse_radius, b.lse))
    return found, b


def gradients(x: Inputs, dout: Array, style: backward_styles.Style) -> list[Worst]:
    got = backward_styles.Kernel(x, style).gradients(dout)
    at = float64.attention(x)
    back = float64_backward(x, dout, at)
    limit = gradient_bound(x, dout, at, back, bound(x, at, style.contract), style.contract)
    limits = (limit.dq, limit.dk, limit.dv)
    exact = backward.gradients(x, dout, back, limits, got)
    return [
        worst(name, g, e.value, e.low, e.radius, b)
        for name, g, e, b in zip(
            ("dq", "dk", "dv"), got, (exact.dq, exact.dk, exact.dv), limits, strict=True
        )
    ]


def edges(c: Case, rng: np.random.Generator) -> Iterator[Worst]:
    """A few elements of each gradient, with every stage's error where the contract ends."""
    if not np.isfinite(c.forward.lse).all():
        return
    for name in ("dq", "dk", "dv"):
        limit, exact = getattr(c.limit, name), getattr(c.exact, name)
        places = np.argwhere(np.isfinite(limit) & (limit > 0))
        for at in map(tuple, rng.permutation(places)[:2].tolist()):
            for up, coin in ((1, None), (-1, None), (1, rng)):
                with np.errstate(all="ignore"):
                    got = np.array([getattr(Edge(c, up, coin), name)(*at)])
                here = (np.array([a[at]]) for a in (exact.value, exact.low, exact.radius, limit))
                yield worst(name, got, *here)


# -- one problem ---------------------------------------------------------------------------


def problems(task: int, seed: int) -> tuple[Problem, ...]:
    space = LARGE if task // len(DTYPES) % 4 == 3 else SMALL
    space = replace(space, dtype=DTYPES[task % len(DTYPES)])
    return drawn(space, PER_TASK, seed * 1_000_003 + task)


def blocked(x: Inputs, style: backward_styles.Style) -> backward_styles.Style:
    """With blocks so large that there are at most some 300 of them."""
    _, heads, _, rows, keys, _, _ = x.shape
    block = style.block or max(rows, keys)
    while heads * -(-rows // block) * -(-keys // block) > max(300, heads):
        block *= 2
    return replace(style, block=block)


def run(tally: Tally, p: Problem, label: str, seeds: tuple[int, ...], verbose: bool) -> None:
    """One problem with its options, kernel and backward, and sometimes with mistakes."""
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds)))
    x = with_options(p.inputs(), rng)
    name, style = styles.draw(rng, x.dtype)
    found, b = forward(x, style)
    tally.add("problems", x.dtype)
    given = list(features(x, p))
    for feature in given:
        tally.add("option", x.dtype, feature)
    if len({f.split(",")[0] for f in given} & OPTIONS) >= 4:
        tally.add("option", x.dtype, "four of them and more")
    tally.add("elements", x.dtype, by=b.out.size)
    tally.add("outside", x.dtype, by=int(np.isinf(b.out).sum()))
    tally.add("vacuous", x.dtype, by=int((b.vacuous & np.isfinite(b.out)).sum()))
    top = max(w.ratio for w in found)
    tally.add("scores", p.scores, ratio=top)
    tally.add("values", p.values, ratio=top)
    tally.add("style", name, ratio=top)
    tally.add("keys a block", str(style.block or "all"), ratio=top)
    tally.add("order of blocks", style.order, ratio=top)
    for part in ("exp", "sums", "scaling", "tanh", "sink", "alibi", "normalize"):
        tally.add(part, getattr(style, part), ratio=top)
    tally.add("octaves of lag", f"{style.lag:g}", ratio=top)
    tally.add("splits", str(style.splits), ratio=top)
    said = f"{x.dtype}, task {label}: {name}"
    if verbose:
        names = ("window", "softcap", "alibi_slopes", "sinks", "bottom_right")
        print(p, {name: getattr(x, name) for name in names}, style, sep="\n")
    _record(tally, x.dtype, found, said, verbose)

    work = x.q.shape[0] * x.q.shape[1] * x.q.shape[2] * x.k.shape[2] * sum(x.shape[5:])
    family = list(DOUTS)[int(rng.integers(len(DOUTS)))]
    dout = DOUTS[family].evaluate((*x.q.shape[:3], x.v.shape[3]), x.format, p.seed + 7)
    back = work <= GRADIENTS.get(x.dtype, SMALL.work)
    if back:
        name, gradient_style = backward_styles.draw(rng, x.dtype)
        gradient_style = blocked(x, gradient_style)
        found = gradients(x, dout, gradient_style)
        tally.add("gradients", x.dtype)
        top = max(w.ratio for w in found)
        tally.add("dout", family, ratio=top)
        tally.add("backward style", name, ratio=top)
        if verbose:
            print(family, gradient_style)
        _record(tally, x.dtype, found, f"{x.dtype}, task {label}: backward, {name}", verbose)
        if x.dtype != "float64" and work <= 8000 and rng.random() < 0.25:
            for w in edges(backward_styles.case_of(p, family, x), rng):
                tally.add("edge", w.output, ratio=w.ratio)
                _record(tally, "", [w], f"{x.dtype}, task {label}: edge", verbose)

    if rng.random() < 1 / 8:
        able = [m for m, possible in styles.MISTAKES.items() if possible(x)]
        if able:
            _try(tally, able, rng, lambda m: forward(x, styles.mistaken(m))[0])
        if back and x.k.shape[2]:
            faults = [f for f in FAULTS if f != "slope of softcap" or x.softcap]
            faulty = partial(backward_styles.Style, block=blocked(x, backward_styles.Style()).block)
            _try(tally, faults, rng, lambda f: gradients(x, dout, faulty(fault=f)))


def _record(tally: Tally, dtype: str, found: list[Worst], said: str, verbose: bool) -> None:
    for w in found:
        if dtype:
            tally.add("ratio", dtype, w.output, ratio=w.ratio)
        if w.ratio > 1:
            tally.violations.append(f"{said}: {w.ratio:.4g} times the bound, {w.said}")
        if verbose:
            print(f"{said}: {w.ratio:.4g}, {w.said}")


def _try(tally: Tally, able: list[str], rng: np.random.Generator, results: Any) -> None:
    mistake = able[int(rng.integers(len(able)))]
    tally.add("mistake", mistake)
    tally.add("caught", mistake, by=int(max(w.ratio for w in results(mistake)) > 1))


def run_task(seed: int, of: tuple[int, int]) -> Tally:
    task, count = of
    tally = Tally()
    for index, p in enumerate(problems(task, seed)[:count]):
        run(tally, p, f"{task}:{index}", (seed, task, index), False)
    return tally


# -- the page ------------------------------------------------------------------------------


def number(ratio: float) -> str:
    return f"{ratio:.3f}"


def table(tally: Tally, title: str, *names: str) -> None:
    """Rows of one or more tables: how many problems, and how near to the bound they came."""
    print(f"\n| {title} | problems | largest error / bound |\n|---|---:|---:|")
    for name in names:
        rows = [key for key in tally.counts if key[0] == name]
        rows.sort(key=lambda key: (len(key[1]), key[1]) if key[1][0].isdigit() else (0, key[1]))
        for key in rows:
            label = key[1] if len(names) == 1 else f"{name}: {key[1]}"
            print(f"| {label} | {tally.counts[key]:,} | {number(tally.largest[key])} |")


def page(tally: Tally) -> None:
    head(__doc__)
    count = tally.counts
    total = sum(n for key, n in count.items() if key[0] == "problems")
    backs = sum(n for key, n in count.items() if key[0] == "gradients")
    print(
        f"**{len(tally.violations)} violations in {total:,} problems**, of which {backs:,} with "
        f"gradients too. Python {platform.python_version()}, NumPy {np.__version__}, "
        f"Hypothesis {hypothesis.__version__}.\n"
    )
    for said in sorted(tally.violations)[:50]:
        print(f"- {said}")
    print("\n## By dtype\n")
    print("Outside: the contract promises nothing. Vacuous: the bound says too little.\n")
    print("| dtype | problems | elements of out | outside | vacuous | out | lse | gradients of |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for d in DTYPES:
        size = max(count["elements", d], 1)
        print(
            f"| {d} | {count['problems', d]:,} | {count['elements', d]:,} | "
            f"{count['outside', d] / size:.1%} | {count['vacuous', d] / size:.1%} | "
            f"{number(tally.largest['ratio', d, 'out'])} | "
            f"{number(tally.largest['ratio', d, 'lse'])} | {count['gradients', d]:,} |"
        )
    print("\nThe largest error / bound of gradients:\n")
    print("| dtype | dq | dk | dv |\n|---|---:|---:|---:|")
    for d in DTYPES:
        row = " | ".join(number(tally.largest["ratio", d, o]) for o in ("dq", "dk", "dv"))
        print(f"| {d} | {row} |")
    print("\n## Options\n")
    print(f"| | {' | '.join(DTYPES)} |\n|---|{'---:|' * len(DTYPES)}")
    for feature in sorted({key[2] for key in count if key[0] == "option"}):
        row = " | ".join(f"{count['option', d, feature]:,}" for d in DTYPES)
        print(f"| {feature} | {row} |")
    print("\n## Styles")
    table(tally, "forward", "style")
    table(tally, "backward", "backward style")
    table(tally, "elements of a backward at the edge", "edge")
    print("\n## What the styles are made of")
    table(tally, "keys a block", "keys a block")
    table(
        tally, "part", "order of blocks", "exp", "sums", "scaling", "octaves of lag", "splits",
        "normalize", "tanh", "alibi", "sink",
    )  # fmt: skip
    print("\n## Families")
    table(tally, "content", "scores", "values", "dout")
    print("\n## Kernels with a mistake\n")
    print("Not every problem on which a mistake is possible shows it.\n")
    print("| mistake | tried | caught |\n|---|---:|---:|")
    for key in sorted(key for key in count if key[0] == "mistake"):
        print(f"| {key[1]} | {count[key]:,} | {count['caught', key[1]]:,} |")


def missed(tally: Tally) -> list[str]:
    """Mistakes that were tried often and never caught, and families that never came."""
    found = [
        f"{key[1]} was never caught"
        for key, n in tally.counts.items()
        if key[0] == "mistake" and n >= 20 and not tally.counts["caught", key[1]]
    ]
    if not any(n for key, n in tally.counts.items() if key[0] == "caught"):
        found.append("no mistake was caught")
    for name, families in (("scores", SCORES), ("values", VALUES), ("problems", DTYPES)):
        found += [f"no {family}" for family in families if not tally.counts[name, family]]
    return found


def main() -> int:
    """0; 1 for a violation; 3 where the run proves nothing."""
    parser = argparse.ArgumentParser(description="Search a correct kernel that is failed.")
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--report", metavar="md=PATH", help="write the page there")
    parser.add_argument("--only", metavar="TASK:INDEX", help="a single problem, and all about it")
    args = parser.parse_args()
    tally = Tally()
    if args.only:
        task, index = map(int, args.only.split(":"))
        p = problems(task, args.seed)[index]
        run(tally, p, args.only, (args.seed, task, index), True)
        return int(bool(tally.violations))
    threads.pin()
    # Tasks of one size, so that fewer problems are the first of many.
    tasks = [
        (i, min(PER_TASK, args.problems - i * PER_TASK))
        for i in range(-(-args.problems // PER_TASK))
    ]
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for n, part in enumerate(pool.imap_unordered(partial(run_task, args.seed), tasks), 1):
            tally.join(part)
            if n % 20 == 0:
                print(f"{n} of {len(tasks)} tasks", file=sys.stderr)
    if args.report:
        with Path(args.report.removeprefix("md=")).open("w") as file, redirect_stdout(file):
            page(tally)
    else:
        page(tally)
    for said in (*sorted(tally.violations)[:50], *missed(tally)):
        print(said, file=sys.stderr)
    return 1 if tally.violations else 3 if missed(tally) else 0


if __name__ == "__main__":
    sys.exit(main())
