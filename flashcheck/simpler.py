"""Simpler: for a problem, those that a person would rather have seen fail, simplest first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from flashcheck.fills import Fill
from flashcheck.formats import FLOAT8
from flashcheck.inputs import DESCALES
from flashcheck.masks import Mask
from flashcheck.problem import Problem
from flashcheck.sequences import Lengths, fewest_slots, lengths, plain, with_lengths


def without_options(p: Problem) -> Iterator[Problem]:
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
        yield from (replace(p, window=(n, right)) for n in _fewer(left))
        yield from (replace(p, window=(left, n)) for n in _fewer(right))
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
    factors: dict[str, Any] = {n: getattr(p, n) for n in DESCALES if getattr(p, n) is not None}
    if factors:
        without: list[dict[str, Any]] = [dict.fromkeys(factors), *({n: None} for n in factors)]
        yield from (replace(p, **none) for none in without)
        if p.descale_per != "tensor":
            yield replace(p, descale_per="tensor", descale_block=(1, 1))
        twice: dict[str, Any] = dict.fromkeys(factors, Fill(level=2.0))
        if factors != twice:
            yield replace(p, **twice)
    if p.num_splits > 1:
        yield from (replace(p, num_splits=n) for n in _fewer(p.num_splits) if n)
    if p.scale is not None:
        yield from (replace(p, scale=None), replace(p, scale=1.0))
    if p.mask is not None:
        yield from (replace(p, mask=mask) for mask in _simpler_masks(p.mask, p.len_k))


def fewer_sequences(p: Problem) -> Iterator[Problem]:
    """As a plain call of one sequence; without one of the sequences; without what is left over."""
    each = lengths(p)
    yield from (plain(p, at) for at, (queries, _) in enumerate(each) if queries)
    if len(each) > 1:
        for at in range(len(each)):
            yield from _dealt(p, each[:at] + each[at + 1 :])
    if p.longest != (0, 0):
        yield replace(p, longest=(0, 0))
    if p.spare:
        yield replace(p, spare=0)
    if p.shared:
        yield from (replace(p, shared=n) for n in _fewer(p.shared))


def shorter_sequences(p: Problem) -> Iterator[Problem]:
    """One sequence with fewer queries, or keys, or both; fewer pages."""
    each = lengths(p)

    def other(at: int, queries: int, keys: int) -> Iterator[Problem]:
        return _dealt(p, [*each[:at], (queries, keys), *each[at + 1 :]])

    for at, (queries, keys) in enumerate(each):
        for fewer in _fewer(queries) if p.packed else ():
            yield from other(at, fewer, keys)
            if keys > fewer:
                yield from other(at, fewer, fewer)
    for at, (queries, keys) in enumerate(each):
        for fewer in _fewer(keys):
            yield from other(at, queries, fewer)
    if p.page:
        yield from (replace(p, len_q=n) for n in _fewer(p.len_q) if n)
        if fewest_slots(p) < p.len_k:
            yield replace(p, len_k=fewest_slots(p))


def _fewer(n: int) -> Iterator[int]:
    """0 and 1, then half of n, then one less, as far as they are less."""
    yield from (m for m in dict.fromkeys((0, 1, n // 2, n - 1)) if 0 <= m < n)


def _dealt(p: Problem, of_each: list[Lengths]) -> Iterator[Problem]:
    """The problem with such sequences, where it is one."""
    if any(queries for queries, _ in of_each):
        yield with_lengths(p, of_each)


def bias_in_scores(p: Problem) -> Iterator[Problem]:
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


def fewer_heads(p: Problem) -> Iterator[Problem]:
    for batch in (1, 2):
        if p.batch > batch and not p.seqlens_k:
            yield follow(p, replace(p, batch=batch))
    group = p.heads // p.kv_heads
    for kv in (1, 2):
        if p.kv_heads > kv:
            yield follow(p, replace(p, heads=kv * group, kv_heads=kv))
    if group > 2:
        yield follow(p, replace(p, heads=2 * p.kv_heads))


def _corner(p: Problem, name: str) -> tuple[int, int, int, int]:
    """The last batch, head and channel of a tensor, at its last position."""
    heads = p.heads if name == "q" else p.kv_heads
    return p.batch - 1, heads - 1, -1, (p.dim_v if name == "v" else p.dim) - 1


def follow(p: Problem, smaller: Problem) -> Problem:
    """A planted element at the corner of a tensor of p stays at the corner."""
    for name in ("q", "k", "v"):
        fill: Fill = getattr(smaller, name)
        if any(index == _corner(p, name) for index, _ in fill.plants):
            moved = tuple(
                (_corner(smaller, name) if index == _corner(p, name) else index, value)
                for index, value in fill.plants
            )
            smaller = with_fill(smaller, name, replace(fill, plants=moved))
    return smaller


def simpler_fills(p: Problem) -> Iterator[Problem]:
    """Simpler fills of q and k together, then of each tensor alone, simplest first."""
    plain = [Fill(), Fill(level=1.0)]
    last, first = Fill("spike", level=1.0, at=-1), Fill("spike", level=1.0, at=0)
    for v in (p.v, last, _planted(p, "v")):
        flat = replace(p, q=Fill(), k=Fill(), v=v)
        if fills_cost(flat) < fills_cost(p):
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
            yield with_fill(p, name, replace(fill, plants=()))
        if fill.noise not in ("none", "normal"):
            yield with_fill(p, name, replace(fill, noise="normal", spread=1.0))
    yield from (replace(p, seed=seed) for seed in (0, 1, 2) if p.seed > seed)


def _planted(p: Problem, name: str) -> Fill:
    """0 but for one element: tells batches, heads and channels apart."""
    return Fill(plants=((_corner(p, name), 1.0),))


def _better(p: Problem, name: str, fill: Fill, options: list[Fill]) -> Iterator[Problem]:
    """The options that are simpler than the fill, simplest first."""
    for option in sorted(options, key=_fill_cost):
        if _fill_cost(option) < _fill_cost(fill):
            yield with_fill(p, name, option)


_PATTERN_COST = {"constant": 0, "spike": 1, "step": 2, "alternate": 3, "cycle": 4, "stairs": 5}


def _fill_cost(f: Fill) -> float:
    """How much there is to say about a fill; its numbers count last."""
    noise = 0 if f.noise == "none" else 100 if f.noise == "normal" else 200
    pattern = 10 * (_PATTERN_COST[f.pattern] + (f.base != 0) + 1.5 * bool(f.plants))
    kind, size, negative = number_cost(f.level)
    number = kind + min(size, 1e6) / 1e7 + (1e-8 if negative else 0)
    place = 0 if f.pattern not in ("spike", "step") else 0.5 * (f.at != -1)
    return noise + pattern + number + place


def fills_cost(p: Problem) -> float:
    return _fill_cost(p.q) + _fill_cost(p.k) + _fill_cost(p.v)


def scores_cost(p: Problem) -> float:
    options = (p.mask is not None) + p.is_causal + (p.scale is not None) + (p.softcap != 0)
    options += (p.window != (-1, -1)) + (p.alibi_slopes is not None) + (p.sinks is not None)
    return _fill_cost(p.q) + _fill_cost(p.k) + 50 * options + p.dim


def simpler_periods(p: Problem) -> Iterator[Problem]:
    for name in ("q", "k", "v"):
        fill: Fill = getattr(p, name)
        if fill.period > 1 and fill.pattern in ("stairs", "cycle"):
            yield with_fill(p, name, replace(fill, period=1))
            yield with_fill(p, name, replace(fill, period=fill.period // 2))


def number_cost(x: float) -> tuple[int, float, bool]:
    """0 and 1, then whole numbers by size, then powers of two, then the rest; minus last."""
    size = abs(x)
    if size == int(size) and size < 1e6:
        return 0, size, x < 0
    simple = math.frexp(size)[0] == 0.5
    return (1 if simple else 2), abs(math.log2(size)), x < 0


def in_dtype(p: Problem, dtype: str) -> Problem:
    """The problem in another dtype; only float8 has factors."""
    changes: dict[str, Any] = {} if dtype in FLOAT8 else dict.fromkeys(DESCALES)
    return replace(p, dtype=dtype, **changes)


def with_fill(p: Problem, name: str, fill: Fill) -> Problem:
    changes: dict[str, Any] = {name: fill}
    return replace(p, **changes)
