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

from flashcheck.fills import Fill
from flashcheck.formats import FORMATS
from flashcheck.masks import Mask
from flashcheck.problem import Problem
from flashcheck.strategies import Space

MAX_RUNS = 300
MAX_SECONDS = 30.0

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
            self._first_of(_bias_in_scores)
            self._first_of(_without_options)
            self._first_of(_fewer_heads)
            self._lengths()
            self._first_of(self._same_scores)
            self._first_of(_simpler_fills)
            self._lengths()
            self._first_of(_simpler_periods)
            self._numbers()
            if self.best == before:
                self._positive_zeros()
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
        if not p.seqlens_k and not space.dense:
            return False
        if p.dim not in space.head_dims or (p.dim_v != p.dim and not space.dim_v_differs):
            return False
        if p.len_k == 0 and not space.empty_keys:
            return False
        placed = p.window != (-1, -1) or p.alibi_slopes is not None
        queries = p.seqlens_q or (p.len_q,) * p.batch
        unequal = queries != (p.seqlens_k or (p.len_k,) * p.batch)
        if p.is_causal and unequal and placed and not space.aligned:
            return False  # two options that are aligned differently
        return p.scale is not None or space.scale_none

    def _first_of(self, candidates: Callable[[Problem], Iterator[Problem]]) -> None:
        """Take the first simplification that fails, from the new problem on, to the end."""
        progress = True
        while progress:
            progress = any(self._accept(candidate) for candidate in candidates(self.best))

    def _lengths(self) -> None:
        if self.best.seqlens_k:
            self._first_of(_fewer_sequences)
            self._first_of(_shorter_sequences)
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
        return _with(self.best, name, replace(getattr(self.best, name), **{parameter: x}))

    def _number(
        self, value: float, build: Build, allowed: Callable[[float], bool] = lambda x: True
    ) -> None:
        fmt = FORMATS[self.best.dtype]

        def better(x: float) -> bool:
            x = float(fmt.round(x))
            simpler = _number_cost(x) < _number_cost(value) and allowed(x)
            return simpler and self._accept(build(x))

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
        return _follow(p, replace(p, **changes))

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
        large = float(
            FORMATS[p.dtype].round(math.ceil(min(top / ((factor or 1) * base.dim), 1024.0)))
        )
        for size in dict.fromkeys((1.0, large or 1.0)):
            up, down = replace(last, level=size), replace(last, level=-size)
            pairs = [(one, Fill(level=size)), (one, Fill(level=-size)), (one, up), (one, down)]
            pairs += [(one, replace(up, at=0)), (up, one), (down, one), (replace(up, at=0), one)]
            pairs += [(last, up), (last, down)]
            for q, k in pairs:
                candidate = replace(base, q=q, k=k)
                if _scores_cost(candidate) < _scores_cost(p):
                    yield candidate

    def _positive_zeros(self) -> None:
        """-0.0 equals 0.0, and so would never be tried: it reads worse."""
        candidate = self.best
        for name in ("q", "k", "v"):
            f: Fill = getattr(candidate, name)
            candidate = _with(candidate, name, replace(f, level=f.level + 0.0, base=f.base + 0.0))
        if repr(candidate) != repr(self.best) and self.runs > 0 and self.fails(candidate):
            self.best = candidate


def _without_options(p: Problem) -> Iterator[Problem]:
    if p.mask is not None:
        yield replace(p, mask=None)
    if p.is_causal:
        yield replace(p, is_causal=False)
    if p.enable_gqa:
        yield replace(p, heads=p.kv_heads)
    if p.layout != "contiguous":
        yield replace(p, layout="contiguous")
    if p.window != (-1, -1):
        left, right = p.window
        yield replace(p, window=(-1, -1))
        yield from (replace(p, window=w) for w in ((left, -1), (-1, right)) if w != p.window)
        # One key wide, then narrower by one, on each side that is bounded.
        for n in (0, 1, left // 2, left - 1):
            if 0 <= n < left:
                yield replace(p, window=(n, right))
        for n in (0, 1, right // 2, right - 1):
            if 0 <= n < right:
                yield replace(p, window=(left, n))
    if p.softcap:
        yield from (replace(p, softcap=c) for c in (0.0, 1.0, 30.0) if c != p.softcap)
    for name in ("alibi_slopes", "sinks"):
        fill: Fill | None = getattr(p, name)
        if fill is not None:
            simpler = [None] if fill == Fill() else [None, Fill()]
            if fill.noise != "none" or fill.pattern != "constant":
                simpler += [Fill(level=1.0), Fill(level=fill.level)]
            for other in simpler:
                changes: dict[str, Any] = {name: other}
                yield replace(p, **changes)
    if any((p.q_descale, p.k_descale, p.v_descale)):
        yield replace(p, q_descale=None, k_descale=None, v_descale=None)
        for name in ("q_descale", "k_descale", "v_descale"):
            changes = {name: None}
            yield from (replace(p, **changes),) if getattr(p, name) is not None else ()
        if p.descale_per != "tensor":
            yield replace(p, descale_per="tensor", descale_block=(1, 1))
        two = Fill(level=2.0)
        once: dict[str, Any] = {
            name: two for name in ("q_descale", "k_descale", "v_descale")
            if getattr(p, name) not in (None, two)
        }  # fmt: skip
        if once:
            yield replace(p, **once)
    if p.num_splits > 1:
        fewer = (1, 2, p.num_splits // 2, p.num_splits - 1)
        yield from (replace(p, num_splits=n) for n in fewer if n < p.num_splits)
    if p.scale is not None:
        yield from (replace(p, scale=None), replace(p, scale=1.0))
    if p.mask is not None:
        yield from (replace(p, mask=mask) for mask in _simpler_masks(p.mask, p.len_k))


def _fewer_sequences(p: Problem) -> Iterator[Problem]:
    """As a plain call of one sequence; without one of the sequences; without what is left over."""
    queries = p.seqlens_q or (p.len_q,) * len(p.seqlens_k)
    for q, k in zip(queries, p.seqlens_k, strict=True):
        if q:
            yield replace(
                p, batch=1, len_q=q, len_k=k, seqlens_q=(), seqlens_k=(), longest=(0, 0), page=0,
                spare=0,
            )  # fmt: skip
    if len(p.seqlens_k) > 1:
        for at in range(len(p.seqlens_k)):
            yield from _dealt(
                p,
                p.seqlens_q[:at] + p.seqlens_q[at + 1 :],
                p.seqlens_k[:at] + p.seqlens_k[at + 1 :],
            )
    if p.longest != (0, 0):
        yield replace(p, longest=(0, 0))
    if p.spare:
        yield replace(p, spare=0)


def _shorter_sequences(p: Problem) -> Iterator[Problem]:
    """One sequence with fewer queries, or keys, or both; smaller pages."""
    for at, n in enumerate(p.seqlens_q):
        for fewer in dict.fromkeys((0, 1, n // 2, n - 1)):
            if 0 <= fewer < n:
                queries = (*p.seqlens_q[:at], fewer, *p.seqlens_q[at + 1 :])
                yield from _dealt(p, queries, p.seqlens_k)
                if p.seqlens_k[at] > fewer:
                    keys = (*p.seqlens_k[:at], fewer, *p.seqlens_k[at + 1 :])
                    yield from _dealt(p, queries, keys)
    for at, n in enumerate(p.seqlens_k):
        for fewer in dict.fromkeys((0, 1, n // 2, n - 1)):
            if 0 <= fewer < n:
                yield from _dealt(
                    p, p.seqlens_q, (*p.seqlens_k[:at], fewer, *p.seqlens_k[at + 1 :])
                )
    if p.page:
        for fewer in (1, p.len_q // 2, p.len_q - 1):
            if 0 < fewer < p.len_q:
                yield replace(p, len_q=fewer)
        fewest = max(1, -(-max(p.seqlens_k) // p.page)) * p.page
        if fewest < p.len_k:
            yield replace(p, len_k=fewest)


def _dealt(p: Problem, queries: tuple[int, ...], keys: tuple[int, ...]) -> Iterator[Problem]:
    """The problem with such sequences, where it is one."""
    if p.page:
        yield replace(p, batch=len(keys), seqlens_k=keys)
    elif sum(queries):
        yield replace(p, len_q=sum(queries), len_k=sum(keys), seqlens_q=queries, seqlens_k=keys)


def _bias_in_scores(p: Problem) -> Iterator[Problem]:
    """The scores that a bias makes, made by q and k instead and the mask left out."""
    if p.mask is None or p.mask.bias == Fill():
        return
    size = float(math.ceil(max(abs(p.mask.bias.level), 3 * p.mask.bias.spread, 1.0)))
    for level in (size, -size):
        spikes = [Fill("spike", level=level, at=-1), Fill("spike", level=level)]
        for q, k in [(Fill(level=1.0), k) for k in (Fill(level=level), *spikes)] + [
            (Fill("spike", level=level, at=-1), Fill(level=1.0))
        ]:
            # With the scale 1 scores are what they say where D is 1, larger elsewhere.
            yield replace(p, mask=None, q=q, k=k, scale=1.0)


def _simpler_masks(m: Mask, keys: int) -> Iterator[Mask]:
    if m.hides != "nothing":
        yield replace(m, hides="nothing", amount=0)
    if m.per_batch or m.per_head:
        yield replace(m, per_batch=False, per_head=False)
    if not (m.per_query and m.per_key):
        yield replace(m, per_query=True, per_key=True)
    if m.kind == "additive":
        yield replace(m, kind="bool", bias=Fill(), dtype="float32")
        if m.bias != Fill():
            yield replace(m, bias=Fill())
            if m.bias.noise != "none" or m.bias.pattern not in ("constant", "spike"):
                yield replace(m, bias=Fill(level=1.0))
                yield replace(m, bias=Fill("spike", level=1.0, at=-1))
        if m.dtype != "float32":
            yield replace(m, dtype="float32")
    if m.rank not in (2, 4):
        yield replace(m, rank=4)
    if m.hides not in ("tail", "nothing"):
        yield replace(m, hides="tail", amount=1)
        # One key alone is seen: the last or the first.
        if m.hides != "head" and keys:
            yield replace(m, hides="head", amount=keys - 1)
            yield replace(m, hides="tail", amount=keys - 1)
    if m.amount > 0:
        yield replace(m, amount=0)
        yield replace(m, amount=1)
        yield replace(m, amount=m.amount // 2)
        yield replace(m, amount=m.amount - 1)


def _fewer_heads(p: Problem) -> Iterator[Problem]:
    for batch in (1, 2):
        if p.batch > batch and not p.seqlens_k:
            yield _follow(p, replace(p, batch=batch))
    group = p.heads // p.kv_heads
    for kv in (1, 2):
        if p.kv_heads > kv:
            yield _follow(p, replace(p, heads=kv * group, kv_heads=kv))
    if group > 2:
        yield _follow(p, replace(p, heads=2 * p.kv_heads))


def _corner(p: Problem, name: str) -> tuple[int, int, int, int]:
    """The last batch, head and channel of a tensor, at its last position."""
    heads = p.heads if name == "q" else p.kv_heads
    return p.batch - 1, heads - 1, -1, (p.dim_v if name == "v" else p.dim) - 1


def _follow(p: Problem, smaller: Problem) -> Problem:
    """A planted element at the corner of a tensor of p stays at the corner."""
    for name in ("q", "k", "v"):
        fill: Fill = getattr(smaller, name)
        if any(index == _corner(p, name) for index, _ in fill.plants):
            moved = tuple(
                (_corner(smaller, name) if index == _corner(p, name) else index, value)
                for index, value in fill.plants
            )
            smaller = _with(smaller, name, replace(fill, plants=moved))
    return smaller


def _simpler_fills(p: Problem) -> Iterator[Problem]:
    """Simpler fills of q and k together, then of each tensor alone, simplest first."""
    plain = [Fill(), Fill(level=1.0)]
    last, first = Fill("spike", level=1.0, at=-1), Fill("spike", level=1.0, at=0)
    for v in (p.v, last, _planted(p, "v")):
        flat = replace(p, q=Fill(), k=Fill(), v=v)
        if _fills_cost(flat) < _fills_cost(p):
            yield flat
    for name in ("q", "k"):
        fill: Fill = getattr(p, name)
        options = [*plain, Fill(level=fill.level), Fill(level=fill.base), _planted(p, name)]
        options += [last, Fill(noise=fill.noise, spread=fill.spread)]
        yield from _better(p, name, fill, [*options, replace(fill, noise="none", spread=0.0)])
    values = [*plain, last, first, _planted(p, "v"), Fill(noise=p.v.noise, spread=p.v.spread)]
    values += [replace(p.v, noise="none", spread=0.0), Fill("step", level=1.0, at=p.v.at)]
    values += [Fill("stairs", level=1.0), Fill("alternate", level=1.0)]
    yield from _better(p, "v", p.v, values)
    for name in ("q", "k", "v"):
        fill = getattr(p, name)
        if fill.plants and fill != _planted(p, name):
            yield _with(p, name, replace(fill, plants=()))
        if fill.noise not in ("none", "normal"):
            yield _with(p, name, replace(fill, noise="normal", spread=1.0))
    yield from (replace(p, seed=seed) for seed in (0, 1, 2) if p.seed > seed)


def _planted(p: Problem, name: str) -> Fill:
    """0 but for one element: tells batches, heads and channels apart."""
    return Fill(plants=((_corner(p, name), 1.0),))


def _better(p: Problem, name: str, fill: Fill, options: list[Fill]) -> Iterator[Problem]:
    """The options that are simpler than the fill, simplest first."""
    for option in sorted(options, key=_fill_cost):
        if _fill_cost(option) < _fill_cost(fill):
            yield _with(p, name, option)


_PATTERN_COST = {"constant": 0, "spike": 1, "step": 2, "alternate": 3, "cycle": 4, "stairs": 5}


def _fill_cost(f: Fill) -> float:
    """How much there is to say about a fill; its numbers count last."""
    noise = 0 if f.noise == "none" else 100 if f.noise == "normal" else 200
    pattern = 10 * (_PATTERN_COST[f.pattern] + (f.base != 0) + 1.5 * bool(f.plants))
    kind, size, negative = _number_cost(f.level)
    number = kind + min(size, 1e6) / 1e7 + (1e-8 if negative else 0)
    place = 0 if f.pattern not in ("spike", "step") else 0.5 * (f.at != -1)
    return noise + pattern + number + place


def _fills_cost(p: Problem) -> float:
    return _fill_cost(p.q) + _fill_cost(p.k) + _fill_cost(p.v)


def _scores_cost(p: Problem) -> float:
    options = (p.mask is not None) + p.is_causal + (p.scale is not None) + (p.softcap != 0)
    options += (p.window != (-1, -1)) + (p.alibi_slopes is not None) + (p.sinks is not None)
    return _fill_cost(p.q) + _fill_cost(p.k) + 50 * options + p.dim


def _simpler_periods(p: Problem) -> Iterator[Problem]:
    for name in ("q", "k", "v"):
        fill: Fill = getattr(p, name)
        if fill.period > 1 and fill.pattern in ("stairs", "cycle"):
            yield _with(p, name, replace(fill, period=1))
            yield _with(p, name, replace(fill, period=fill.period // 2))


def _number_cost(x: float) -> tuple[int, float, bool]:
    """0 and 1, then whole numbers by size, then powers of two, then the rest; minus last."""
    size = abs(x)
    if size == int(size) and size < 1e6:
        return 0, size, x < 0
    simple = math.frexp(size)[0] == 0.5
    return (1 if simple else 2), abs(math.log2(size)), x < 0


def _with(p: Problem, name: str, fill: Fill) -> Problem:
    changes: dict[str, Any] = {name: fill}
    return replace(p, **changes)
