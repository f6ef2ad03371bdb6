"""Shrink: from a failing problem to the smallest one a person would have written.

Hypothesis shrinks the problems of ordinary tests; the gate does not stop at a failure, finds
several causes in one run, and must start from a given problem within a budget of runs. So it
reduces the recipe itself: options off, one head, simple fills, then each length by bisection,
over and over until nothing changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flashcheck import simpler
from flashcheck.fills import Fill
from flashcheck.formats import FORMATS
from flashcheck.problem import Problem
from flashcheck.strategies import Space

MAX_RUNS = 300
MAX_SECONDS = 30.0

BLOCKS = (16, 32, 64, 128)
"""Usual sizes of blocks."""

Fails = Callable[[Problem], bool]
Build = Callable[[float], Problem]


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
    with suppress(_Spent):
        shrinker.run()
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
            self._first_of(simpler.bias_in_scores)
            self._first_of(simpler.without_options)
            self._first_of(simpler.fewer_heads)
            self._lengths()
            self._first_of(self._same_scores)
            self._first_of(simpler.simpler_fills)
            self._lengths()
            self._first_of(simpler.simpler_periods)
            self._numbers()
            if self.best == before:
                self._positive_zeros()
                return

    def _accept(self, candidate: Problem) -> bool:
        """Try a candidate once; keep it if it fails."""
        if candidate in self.tried or not self.space.takes(candidate):
            return False
        self.tried.add(candidate)
        if self.runs <= 0 or time.monotonic() > self.deadline:
            raise _Spent
        self.runs -= 1
        if self.fails(candidate):
            self.best = candidate
            return True
        return False

    def _first_of(self, candidates: Callable[[Problem], Iterator[Problem]]) -> None:
        """Take the first simplification that fails, from the new problem on, to the end."""
        progress = True
        while progress:
            progress = any(self._accept(candidate) for candidate in candidates(self.best))

    def _lengths(self) -> None:
        if self.best.seqlens_k:
            self._first_of(simpler.fewer_sequences)
            self._first_of(simpler.shorter_sequences)
            for name in ("dim_v", "dim"):
                self._shorten(name)
            return
        for name in ("len_q", "len_k", "dim_v", "dim"):
            self._shorten(name)
        # Some faults need a square.
        for n in (self.best.len_q, self.best.len_k):
            if n < max(self.best.len_q, self.best.len_k) and n > 0:
                self._accept(replace(self.best, len_q=n, len_k=n))

    def _shorten(self, name: str) -> None:
        """The smallest value that fails: the smallest of all, else by bisection, then by one."""
        if name == "dim_v" and not self.space.dim_v_differs:
            return
        current: int = getattr(self.best, name)
        if name == "dim":
            for size in sorted(set(self.space.head_dims)):
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
        # Where not all lengths fail, those may that end at the same place in a block.
        alike = {high % n + more for n in BLOCKS for more in (0, n)}
        for size in sorted(n for n in alike if 3 < n < high - 1):
            if self._accept(self._resized(name, size)):
                high = size
                break
        while high > 1 and self._accept(self._resized(name, high - 1)):
            high -= 1

    def _numbers(self) -> None:
        """The levels: zero or one where they do, else the smallest whole number that fails."""
        for name in ("q", "k", "v"):
            for parameter in ("level", "base", "spread"):
                value = getattr(getattr(self.best, name), parameter)
                self._number(value, partial(self._numbered, name, parameter))
        scale = self.best.scale
        if scale is not None and scale != 0:
            # Zero and negative scales are features of their own: none is brought in.
            self._number(
                scale,
                lambda x: replace(self.best, scale=x),
                allowed=lambda x: x != 0 and (x > 0 or scale < 0),
            )

    def _numbered(self, name: str, parameter: str, x: float) -> Problem:
        fill = replace(getattr(self.best, name), **{parameter: x})
        return simpler.with_fill(self.best, name, fill)

    def _number(
        self, value: float, build: Build, allowed: Callable[[float], bool] = lambda x: True
    ) -> None:
        fmt = FORMATS[self.best.dtype]

        def better(x: float) -> bool:
            x = float(fmt.round(x))
            less = simpler.number_cost(x) < simpler.number_cost(value) and allowed(x)
            return less and self._accept(build(x))

        if value == 0 or better(0.0):
            return
        sign = math.copysign(1.0, value)
        if better(sign) or (sign < 0 and better(-value)):
            return
        # Bisection over whole numbers, taking it that larger ones fail too.
        high = math.ceil(abs(value))
        if high != abs(value) and not better(sign * high):
            better(sign * 2.0 ** round(math.log2(abs(value))))
            return
        value, low = sign * high, 1
        while high - low > 1:
            middle = (low + high) // 2
            if better(sign * middle):
                high, value = middle, sign * middle
            else:
                low = middle

    def _resized(self, name: str, size: int) -> Problem:
        p = self.best
        changes: dict[str, Any] = {name: size}
        if name == "dim" and not self.space.dim_v_differs:
            changes["dim_v"] = size
        if name == "len_k" and size:
            # A position that was the last key stays the last key.
            last = p.len_k - 1
            for tensor, fill in (("k", p.k), ("v", p.v)):
                if fill.at == last > 0:
                    changes[tensor] = replace(fill, at=-1)
            if p.mask is not None and p.mask.hides in ("head", "tail") and p.mask.amount == last:
                changes["mask"] = replace(p.mask, amount=size - 1)
        return simpler.follow(p, replace(p, **changes))

    def _same_scores(self, p: Problem) -> Iterator[Problem]:
        """The range of p's scores from plain fills, in one channel, without options."""
        x = p.inputs()
        k = np.repeat(x.k, x.heads_per_kv, axis=1)
        with np.errstate(all="ignore"):
            scores = (x.q @ k.swapaxes(2, 3)) * x.exact_scale
            scores = np.nan_to_num(scores)
            top = float(scores.max(initial=0.0) - scores.min(initial=0.0))
        dim = min(self.space.head_dims)
        dim_v = p.dim_v if self.space.dim_v_differs or dim == p.dim else dim
        small = replace(p, dim=dim, dim_v=dim_v)
        plain = replace(
            small, scale=None, is_causal=False, mask=None, window=(-1, -1), softcap=0.0,
            alibi_slopes=None, sinks=None,
        )  # fmt: skip
        bases = [replace(small, scale=None), plain]
        for base in dict.fromkeys([*(bases if self.space.scale_none else ()), small]):
            yield from self._plain_scores(p, base, top)

    def _plain_scores(self, p: Problem, base: Problem, top: float) -> Iterator[Problem]:
        one, last = Fill(level=1.0), Fill("spike", level=1.0, at=-1)
        factor = 1 / math.sqrt(base.dim) if base.scale is None else abs(base.scale)
        if not factor:
            return
        fmt = FORMATS[p.dtype]
        large = float(fmt.round(math.ceil(min(top / (factor * base.dim), 1024.0, fmt.max_finite))))
        for size in dict.fromkeys((1.0, large or 1.0)):
            up, down = replace(last, level=size), replace(last, level=-size)
            pairs = [(one, Fill(level=size)), (one, Fill(level=-size)), (one, up), (one, down)]
            pairs += [(one, replace(up, at=0)), (up, one), (down, one), (replace(up, at=0), one)]
            pairs += [(last, up), (last, down)]
            for q, k in pairs:
                candidate = replace(base, q=q, k=k)
                if simpler.scores_cost(candidate) < simpler.scores_cost(p):
                    yield candidate

    def _positive_zeros(self) -> None:
        """-0.0 equals 0.0, and so would never be tried: it reads worse."""
        candidate = self.best
        for name in ("q", "k", "v"):
            f: Fill = getattr(candidate, name)
            positive = replace(f, level=f.level + 0.0, base=f.base + 0.0)
            candidate = simpler.with_fill(candidate, name, positive)
        if repr(candidate) != repr(self.best) and self.runs > 0 and self.fails(candidate):
            self.best = candidate
