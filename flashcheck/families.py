"""Families: distributions of scores, realised through q and k, and of values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from flashcheck.fills import Fill, Noise, Pattern
from flashcheck.formats import FORMATS
from flashcheck.problem import Problem


def _levels(p: Problem, nats: float) -> tuple[float, float]:
    """Levels of q and k that make every score differ by `nats`: scale * D * a * c."""
    scale = 1 / math.sqrt(p.dim) if p.scale is None else p.scale
    product = nats / (abs(scale) * p.dim) if scale else nats
    a = 2.0 ** min(max(round(math.log2(max(product, 1e-9)) / 2), -4), 7)
    return a, math.copysign(product / a, scale or 1.0)


ScoreFamily = Callable[[Problem, float, int, float], tuple[Fill, Fill]]
"""(problem, nats, position, noise spread) -> fills of q and k."""


def _flat(sign: float) -> ScoreFamily:
    def fills(p: Problem, nats: float, at: int, noise: float) -> tuple[Fill, Fill]:
        a, c = _levels(p, nats)
        kind: Noise = "normal" if noise else "none"
        spread = noise / 8
        return (
            Fill(level=a, noise=kind, spread=spread),
            Fill(level=sign * c, noise=kind, spread=spread),
        )

    return fills


def _pattern(pattern: Pattern, sign: float = 1.0, base: float = 0.0) -> ScoreFamily:
    """Keys that follow a pattern; queries of alternating sign for odd positions."""

    def fills(p: Problem, nats: float, at: int, noise: float) -> tuple[Fill, Fill]:
        a, c = _levels(p, nats)
        kind: Noise = "normal" if noise else "none"
        period = (1, 2, 5, 16, 32, 64)[at % 6]
        where = _place(at, p.len_k)
        q_pattern: Pattern = "alternate" if at % 4 == 3 else "constant"
        return (
            Fill(pattern=q_pattern, level=a, noise=kind, spread=noise / 16),
            Fill(
                pattern=pattern,
                level=sign * c,
                base=base * c,
                at=where,
                period=period,
                noise=kind,
                spread=noise / 16,
            ),
        )

    return fills


def _noise(kind: Noise) -> ScoreFamily:
    def fills(p: Problem, nats: float, at: int, noise: float) -> tuple[Fill, Fill]:
        spread = max(noise, 0.5)
        if kind == "special":
            # Beside factors of 1, larger ones would leave the contract: the row maximum could
            # not be rounded.
            spread = 2.0**12 / FORMATS[p.dtype].max_finite
        f = Fill(noise=kind, spread=spread)
        return f, f

    return fills


def _place(at: int, length: int) -> int:
    """A position: the last key, the first, the middle, edges of blocks, then any."""
    if length == 0:
        return 0
    places = (-1, 0, length // 2, 16, 32, 64, length - 2, 1, 15, 31, 128)
    place = places[at] if at < len(places) else at
    return place if place < 0 else place % length


SCORES: dict[str, ScoreFamily] = {
    "equal": _flat(1.0),
    "normal": _noise("normal"),
    "late_max": _pattern("spike"),
    "step": _pattern("step"),
    "rising": _pattern("stairs"),
    "falling": _pattern("stairs", -1.0),
    "all_negative": _flat(-1.0),
    "ties": _pattern("cycle"),
    "below_max": _pattern("cycle", -1.0),
    "negative_late_max": _pattern("spike", -1.0, -2.0),
    "alternating": _pattern("alternate"),
    "outliers": _noise("outliers"),
    "special": _noise("special"),
}
"""Families of score distributions, realised through q and k."""


def _largest(dtype: str) -> float:
    """Share of the largest finite number that sums of |v| and the oracle's tiers still take."""
    return {"float64": 2.0**-70, "float16": 2.0**-3}.get(dtype, 2.0**-30)


ValueFamily = Callable[[Problem, float, int], Fill]


def _values(
    pattern: Pattern = "constant", noise: Noise = "none", level: float = 1.0
) -> ValueFamily:
    def fill(p: Problem, size: float, at: int) -> Fill:
        return Fill(
            pattern=pattern,
            level=level * size,
            at=_place(at, p.len_k),
            noise=noise,
            spread={"wide": 10.0, "special": _largest(p.dtype)}.get(noise, size),
        )

    return fill


VALUES: dict[str, ValueFamily] = {
    "ones": _values(),
    "one_key": _values("spike"),
    "index": _values("stairs"),
    "normal": _values(noise="normal", level=0.0),
    "positive": _values(noise="positive", level=0.0),
    "negative": _values(noise="negative", level=0.0),
    "cancelling": _values("alternate", "signs", 64.0),
    "halves": _values("step"),
    "wide": _values(noise="wide", level=0.0),
    "outliers": _values(noise="outliers", level=0.0),
    "special": _values(noise="special", level=0.0),
}
"""Families of V."""


def filled(p: Problem, nats: float, at: int, noise: float, v_size: float, v_at: int) -> Problem:
    """The problem with the fills of its families: scores that differ by `nats`, values of
    `v_size`, and what is special about them at the places `at` and `v_at` of `_place`."""
    q, k = SCORES[p.scores](p, nats, at, noise)
    return _fit(p, q, k, VALUES[p.values](p, v_size, v_at))


def _fit(p: Problem, q: Fill, k: Fill, v: Fill) -> Problem:
    """The problem with its fills, levels rounded to the dtype so that they read exactly."""
    fmt = FORMATS[p.dtype]

    def short(f: Fill) -> Fill:
        level, base = (
            float(fmt.round(max(-fmt.max_finite, min(fmt.max_finite, x))))
            for x in (f.level, f.base)
        )
        return replace(f, level=level, base=base)

    return replace(p, q=short(q), k=short(k), v=short(v))
