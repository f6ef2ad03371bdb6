"""Weights: what a kernel really does with each key, measured by running it again.

With V made of unit vectors the output is the attention weights themselves. With q = 0 as
well, every key that takes part weighs the same, so that the output shows which keys do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashcheck import oracle
from flashcheck.bounds import Bound
from flashcheck.call import Call, Reply
from flashcheck.case import BadReply, Case, Runner
from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.oracle import Value
from flashcheck.oracle.float64 import Attention
from flashcheck.problem import Problem

CLOSE = 1e-2
"""Relative agreement by which words are chosen; it decides no verdict."""

Row = tuple[int, int, int]

MAX_KEYS = 128
"""Longest problem whose weights are measured: it takes Lk / Dv runs."""


class Recorder:
    """A runner that remembers every call."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.calls: list[Call] = []

    @property
    def inputs(self) -> list[Inputs]:
        return [call.inputs for call in self.calls]

    def submit(self, call: Call) -> None:
        self.calls.append(call)
        self.runner.submit(call)

    def result(self) -> Reply:
        return self.runner.result()


@dataclass(frozen=True, eq=False)
class Result:
    """A kernel's result on inputs `x` beside the exact one.

    ratio [B, Hq, Lq, Dv] and ratio_lse [B, Hq, Lq]: (error - radius) / bound, inf for a wrong
    NaN or infinity, 0 where nothing is promised.
    """

    x: Inputs
    at: Attention
    bound: Bound
    value: Value
    out: Array
    lse: Array | None
    ratio: Array
    ratio_lse: Array

    @property
    def wrong(self) -> Bools:
        return self.ratio > 1

    @property
    def seen(self) -> Bools:
        """[B, Hq, Lq]: rows that see a key."""
        return self.at.seen

    @property
    def wrong_rows(self) -> Bools:
        """[B, Hq, Lq]: rows of out with a wrong element."""
        return np.asarray(self.wrong.any(-1))

    @property
    def judged_rows(self) -> Bools:
        """[B, Hq, Lq]: rows of out about which the bound says something."""
        return np.asarray(np.isfinite(self.bound.out).all(-1))

    def worst_row(self, rows: Bools) -> Row | None:
        """The row with the largest ratio among `rows`, or None."""
        ratio = np.where(rows, self.ratio.max(-1, initial=0.0), -1.0)
        if ratio.max(initial=-1.0) < 0:
            return None
        b, h, i = np.unravel_index(int(ratio.argmax()), ratio.shape)
        return int(b), int(h), int(i)


def compare(case: Case, x: Inputs) -> Result | None:
    """Run `x` and compare with the exact result; None where there is no usable result."""
    try:
        out, lse = case.out(x), case.lse(x)
    except BadReply:
        return None
    at, bound = case.attention(x), case.exact_bound(x)
    value = oracle.evaluate(x, at, bound.out, bound.lse)
    rows = case.judged_rows(x)
    ratio = _ratio(out, value.out, value.out_low, value.out_radius, bound.out)
    ratio_lse = np.zeros_like(at.lse)
    if lse is not None:
        ratio_lse = _ratio(lse, value.lse, value.lse_low, value.lse_radius, bound.lse)
    return Result(
        x, at, bound, value, out, lse,
        np.where(rows[..., None], ratio, 0.0), np.where(rows, ratio_lse, 0.0),
    )  # fmt: skip


def _ratio(got: Array, expected: Array, low: Array, radius: Array, bound: Array) -> Array:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.where((got == expected) & (low == 0), 0.0, np.abs((got - expected) - low))
        excess = np.maximum(error - radius, 0.0)
        ratio = np.where(excess == 0, 0.0, excess / bound)
        ratio = np.where(np.isnan(ratio) | np.isnan(got), np.inf, ratio)
    return np.where(np.isfinite(bound), ratio, 0.0)


@dataclass(frozen=True, eq=False)
class Weights:
    """Measured weights w and exact weights p, each [B, Hq, Lq, Lk], of every row.

    tol is what the bound of the probing runs allows between them. A row of w that came out
    NaN or infinite is NaN.
    """

    w: Array
    p: Array
    tol: Array

    def usable(self, row: Row) -> bool:
        return bool(np.isfinite(self.w[row]).all() and np.isfinite(self.tol[row]).all())


def measure(case: Case, x: Inputs) -> Weights | None:
    """The kernel's own weights for the scores of `x`; None if a run fails or Lk is too long."""
    n = x.k.shape[2]
    if not 0 < n <= MAX_KEYS:
        return None
    w = np.empty((*x.q.shape[:3], n))
    tol = np.empty_like(w)
    try:
        for part, probe in _unit_values(x):
            count = part.stop - part.start
            w[..., part] = case.out(probe)[..., :count]
            slack = case.exact_bound(probe).out + case.attention(probe).out_radius
            tol[..., part] = slack[..., :count]
    except BadReply:
        return None
    return Weights(w, case.attention(x).p, tol)


def _unit_values(x: Inputs) -> Iterator[tuple[slice, Inputs]]:
    """(keys, inputs): channel t of the run that starts at key j is 1 at key j + t."""
    n, dv = x.v.shape[2:]
    if x.v_descale is not None:
        x = x.with_(v_descale=np.ones_like(x.v_descale))
    for first in range(0, n, dv):
        v = np.zeros_like(x.v)
        part = slice(first, min(first + dv, n))
        for channel, key in enumerate(range(part.start, part.stop)):
            v[:, :, key, channel] = 1.0
        yield part, x.with_(v=v)


def effective_weights(case: Case, row: Row) -> Array | None:
    """[Lk]: the kernel's own weights of one row of the problem, hidden keys included.

    None where they are not finite, or more than MAX_KEYS keys would have to be measured.
    """
    measured = measure(case, case.inputs)
    return measured.w[row] if measured is not None and measured.usable(row) else None


def taken_in(case: Case, x: Inputs) -> tuple[Bools, Bools] | None:
    """(seen, known): which keys take part in which row, measured with q = 0.

    seen [B, Hq, Lq, Lk]; known [B, Hq, Lq] is False where the row came out NaN. With equal
    scores, no slopes and sinks of 0 a key that takes part weighs at least 1 / (Lk + 1), and any
    other 0.
    """
    zeros = {
        name: np.zeros(x.q.shape[1])
        for name in ("alibi_slopes", "sinks")
        if getattr(x, name) is not None
    }
    measured = measure(case, x.with_(q=np.zeros_like(x.q), mask=x.unbiased_mask, **zeros))
    if measured is None:
        return None
    known: Bools = np.asarray(np.isfinite(measured.w).all(-1))
    with np.errstate(invalid="ignore"):
        seen: Bools = np.asarray(np.abs(measured.w) > 0.25 / x.k.shape[2])
    return seen, known


def another(case: Case, problem: Problem) -> tuple[Case, Inputs]:
    """The same kernel on another problem, and its inputs."""
    other = Case(case.runner, case.target, problem, case.config, case.device, case.space)
    return other, other.inputs
