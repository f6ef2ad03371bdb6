"""Shrink: from a failing problem to the smallest one a person would have written.

Hypothesis shrinks the problems of ordinary tests; the gate does not stop at a failure, finds
several causes in one run, and must start from a given problem within a budget of runs. So it
reduces the recipe itself: options off, one head, simple fills, then each length by bisection,
over and over until nothing changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from flashcheck.fills import Fill
from flashcheck.formats import FORMATS
from flashcheck.masks import Mask
from flashcheck.problem import Problem
from flashcheck.strategies import Space

MAX_RUNS = 300
MAX_SECONDS = 30.0

Fails = Callable[[Problem], bool]


class _Spent(Exception):
    """The budget of runs or seconds is used up."""


def shrink(
    problem: Problem,
    fails: Fails,
    space: Space,
    *,
    max_runs: int = MAX_RUNS,
    max_seconds: float = MAX_SECONDS,
) -> Problem:
    """The simplest problem found for which `fails` is still true; `problem` must fail.

    Only problems of `space` are tried.
    """
    shrinker = _Shrinker(problem, fails, space, max_runs, time.monotonic() + max_seconds)
    try:
        shrinker.run()
    except _Spent:
        pass
    return shrinker.best


class _Shrinker:
    def __init__(
        self, problem: Problem, fails: Fails, space: Space, runs: int, deadline: float
    ) -> None:
        self.best = problem
        self.fails = fails
        self.space = space
        self.runs = runs
        self.deadline = deadline
        self.tried: set[Problem] = {problem}

    def run(self) -> None:
        while True:
            before = self.best
            self._first_of(_without_options)
            self._first_of(_fewer_heads)
            self._lengths()
            self._first_of(_simpler_fills)
            self._lengths()
            self._first_of(_simpler_levels)
            if self.best == before:
                return

    def _accept(self, candidate: Problem) -> bool:
        """Try a candidate once; keep it if it fails."""
        if candidate in self.tried or not self._legal(candidate):
            return False
        self.tried.add(candidate)
        if self.runs <= 0 or time.monotonic() > self.deadline:
            raise _Spent
        self.runs -= 1
        if self.fails(candidate):
            self.best = candidate
            return True
        return False

    def _legal(self, p: Problem) -> bool:
        space = self.space
        if p.dim not in space.head_dims or (p.dim_v != p.dim and not space.dim_v_differs):
            return False
        if p.len_k == 0 and not space.empty_keys:
            return False
        return p.scale is not None or space.scale_none

    def _first_of(self, candidates: Callable[[Problem], Iterator[Problem]]) -> None:
        """Take the first simplification that fails, from the new problem on, to the end."""
        progress = True
        while progress:
            progress = any(self._accept(candidate) for candidate in candidates(self.best))

    def _lengths(self) -> None:
        for name in ("len_q", "len_k", "dim_v", "dim"):
            self._shorten(name)
        if self.best.len_q == self.best.len_k:
            return
        # Some faults need a square.
        for n in (self.best.len_q, self.best.len_k):
            if n < max(self.best.len_q, self.best.len_k) and n > 0:
                self._accept(replace(self.best, len_q=n, len_k=n))

    def _shorten(self, name: str) -> None:
        """The smallest value that fails: the smallest of all, else by bisection, then by one."""
        sizes = sorted(set(self.space.head_dims)) if name == "dim" else None
        if name == "dim_v" and not self.space.dim_v_differs:
            return
        current: int = getattr(self.best, name)
        if sizes is not None:
            for size in sizes:
                if size < current and self._accept(self._resized(name, size)):
                    return
            return
        low = 0  # known or taken to pass
        for size in (1, 2, 3):
            if size < current and self._accept(self._resized(name, size)):
                return
            low = size
        high = current
        while high - low > 1:
            middle = (low + high) // 2
            if self._accept(self._resized(name, middle)):
                high = middle
            else:
                low = middle
        while high > 1 and self._accept(self._resized(name, high - 1)):
            high -= 1

    def _resized(self, name: str, size: int) -> Problem:
        p = self.best
        changes: dict[str, Any] = {name: size}
        if name == "dim" and not self.space.dim_v_differs:
            changes["dim_v"] = size
        if name == "len_k" and size:
            # A position that was the last key stays the last key.
            last = p.len_k - 1
            for tensor in ("k", "v"):
                fill: Fill = getattr(p, tensor)
                if fill.at == last and fill.at > 0:
                    changes[tensor] = replace(fill, at=-1)
        return replace(p, **changes)


def _without_options(p: Problem) -> Iterator[Problem]:
    if p.mask is not None:
        yield replace(p, mask=None)
    if p.is_causal:
        yield replace(p, is_causal=False)
    if p.enable_gqa:
        yield replace(p, heads=p.kv_heads)
    if p.layout != "contiguous":
        yield replace(p, layout="contiguous")
    if p.scale is not None:
        yield replace(p, scale=None)
        if p.scale != 1.0:
            yield replace(p, scale=1.0)
    if p.mask is not None:
        yield from (replace(p, mask=mask) for mask in _simpler_masks(p.mask))


def _simpler_masks(m: Mask) -> Iterator[Mask]:
    if m.per_batch or m.per_head:
        yield replace(m, per_batch=False, per_head=False)
    if m.kind == "additive":
        yield replace(m, kind="bool", bias=Fill(), dtype="float32")
        if m.bias != Fill():
            yield replace(m, bias=Fill())
            yield replace(m, bias=Fill(level=1.0))
        if m.dtype != "float32":
            yield replace(m, dtype="float32")
    if m.rank not in (2, 4):
        yield replace(m, rank=4)
    if m.hides not in ("tail", "nothing"):
        yield replace(m, hides="tail", amount=1)
    if m.amount > 0:
        yield replace(m, amount=0)
        yield replace(m, amount=1)
        yield replace(m, amount=m.amount // 2)
        yield replace(m, amount=m.amount - 1)


def _fewer_heads(p: Problem) -> Iterator[Problem]:
    if p.batch > 1:
        yield replace(p, batch=1)
        if p.batch > 2:
            yield replace(p, batch=2)
    group = p.heads // p.kv_heads
    for kv in (1, 2):
        if p.kv_heads > kv:
            yield replace(p, heads=kv * group, kv_heads=kv)
    if group > 2:
        yield replace(p, heads=2 * p.kv_heads)


def _simpler_fills(p: Problem) -> Iterator[Problem]:
    """Fills from the simplest on: q, k and v each in turn."""
    zero, one = Fill(), Fill(level=1.0)
    plain = [zero, one]
    for name in ("q", "k"):
        fill: Fill = getattr(p, name)
        options = [*plain, replace(fill, noise="none", spread=0.0)]
        if name == "k":
            level = fill.level or 1.0
            options += [Fill("spike", level=level, at=-1), Fill("spike", level=level)]
        yield from _better(p, name, fill, options)
    options = [*plain, Fill("spike", level=1.0, at=-1), Fill("spike", level=1.0, at=0)]
    options += [replace(p.v, noise="none", spread=0.0), Fill("step", level=1.0, at=p.v.at)]
    options += [Fill("stairs", level=1.0), Fill("alternate", level=1.0)]
    yield from _better(p, "v", p.v, options)
    for name in ("q", "k", "v"):
        fill = getattr(p, name)
        if fill.plants:
            yield replace(p, **{name: replace(fill, plants=())})
        if fill.noise not in ("none", "normal"):
            yield replace(p, **{name: replace(fill, noise="normal", spread=1.0)})
    if p.seed:
        yield replace(p, seed=0)


def _better(p: Problem, name: str, fill: Fill, options: list[Fill]) -> Iterator[Problem]:
    """The options that are simpler than the fill, simplest first."""
    for option in sorted(options, key=_fill_cost):
        if _fill_cost(option) < _fill_cost(fill):
            yield replace(p, **{name: option})  # type: ignore[arg-type]


_PATTERN_COST = {"constant": 0, "spike": 1, "step": 2, "alternate": 3, "cycle": 4, "stairs": 5}


def _fill_cost(f: Fill) -> tuple[int, int, float, int]:
    return (
        0 if f.noise == "none" else 1 if f.noise == "normal" else 2,
        _PATTERN_COST[f.pattern] + (f.base != 0) + bool(f.plants),
        _number_cost(f.level),
        abs(f.at),
    )


def _simpler_levels(p: Problem) -> Iterator[Problem]:
    fmt = FORMATS[p.dtype]
    for name in ("q", "k", "v"):
        fill: Fill = getattr(p, name)
        for parameter in ("level", "base", "spread"):
            value: float = getattr(fill, parameter)
            for candidate in _simpler_numbers(value):
                rounded = float(fmt.round(candidate))
                if _number_cost(rounded) < _number_cost(value):
                    yield replace(p, **{name: replace(fill, **{parameter: rounded})})
        if fill.period > 1 and fill.pattern in ("stairs", "cycle"):
            yield replace(p, **{name: replace(fill, period=1)})
            yield replace(p, **{name: replace(fill, period=fill.period // 2)})
    if p.scale is not None:
        for candidate in _simpler_numbers(p.scale):
            if _number_cost(candidate) < _number_cost(p.scale):
                yield replace(p, scale=candidate)


def _simpler_numbers(x: float) -> Iterator[float]:
    sign = -1.0 if x < 0 else 1.0
    yield from (0.0, sign, float(round(x)), sign * float(int(abs(x))), sign * float(int(abs(x)) + 1))
    yield x / 2
    size = abs(x)
    if size > 2:
        digits = 10.0 ** (len(str(int(size))) - 1)
        yield sign * digits * (int(size / digits) + 1)
        yield sign * digits * int(size / digits)
        yield sign * (int(size) - 1)


def _number_cost(x: float) -> float:
    """0, 1, -1, then small whole numbers, then larger ones, then all others."""
    size = abs(x) + (0.25 if x < 0 else 0.0)
    return size if x == int(x) and abs(x) < 1e6 else 1e6 + len(repr(x)) * 1e3 + min(abs(x), 1e3)
