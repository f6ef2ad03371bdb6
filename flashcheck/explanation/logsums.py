"""Logsums: what is wrong with lse, in one sentence, first match wins."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flashcheck.case import Case
from flashcheck.explanation import rows
from flashcheck.explanation.phrases import apart, short
from flashcheck.explanation.weights import Result, compare
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs


def sentence(case: Case, r: Result) -> str | None:
    """What the wrong rows of lse have in common; None where nothing fits them all.

    A form is named only where it also holds on other scores: where everything was shrunk until
    it is simple, more than one says the same.
    """
    bad = r.ratio_lse > 1
    if r.lse is None or not bad.any():
        return None
    judged = np.isfinite(r.bound.lse)
    if not (bad & r.seen).any():
        first, meant = apart(float(r.lse[bad][0]), float(r.value.lse[bad][0]))
        if r.x.sinks is not None:
            meant = f"the sink, {meant},"
        return f"lse is {first} instead of {meant} in {rows.which_see_none(r, bad)}"
    seen = judged & r.seen
    got = r.lse[bad & r.seen]
    place = rows.where(bad & r.seen, seen)
    if not np.isfinite(got).any():
        kind = "NaN" if np.isnan(got).all() else "infinite" if np.isinf(got).all() else "not finite"
        return f"lse is {kind} in {place}"
    if not np.isfinite(got).all():
        return f"lse is not finite in {int((~np.isfinite(got)).sum())} of {int(seen.sum())} rows"
    if (got == 0).all():
        return f"lse is 0 in {place}"
    held = _held(r)
    if held and (other := compare(case, _other_scores(r.x))) is not None:
        again = _held(other)
        held = [text for text in held if text in again]
    return held[0] if held else _shift(r, place)


def _held(r: Result) -> list[str]:
    """The forms that predict a wrong lse, in every row that sees a key."""
    seen = np.isfinite(r.bound.lse) & r.seen
    if r.lse is None or not seen.any():
        return []
    got, want = r.lse[seen], r.value.lse[seen]
    slack = 2 * r.bound.lse[seen] + 1e-5 * (np.abs(want) + np.abs(r.at.m[seen]) + 1)
    return [
        text
        for text, predicted in _forms(r, want, r.at.m[seen], r.at.l[seen])
        if (np.abs(predicted - want) > slack).any() and (np.abs(got - predicted) <= slack * 2).all()
    ]


def _other_scores(x: Inputs) -> Inputs:
    """The same call with scores that all differ a little, and twice the keys unless they are
    those of sequences or have factors."""
    rng, fmt = np.random.default_rng(0), FORMATS[x.dtype]

    def moved(tensor: Array) -> Array:
        noise = rng.standard_normal(tensor.shape) * (1 + np.abs(tensor)) / 4
        return np.asarray(fmt.round(np.clip(tensor + noise, -fmt.max_finite, fmt.max_finite)))

    if x.seqlens_k is not None or x.factors:
        return x.with_(q=moved(x.q), k=moved(x.k))
    k, v = np.concatenate((x.k, x.k), 2), np.concatenate((x.v, x.v), 2)
    mask: Any = x.mask
    if mask is not None and mask.shape[-1] == x.k.shape[2]:
        mask = np.concatenate((mask, mask), -1)
    return x.with_(q=moved(x.q), k=moved(k), v=v, mask=mask)


def _forms(r: Result, want: Array, m: Array, l: Array) -> Iterator[tuple[str, Array]]:
    log_l, e2 = np.log(l), math.log2(math.e)
    scale = r.x.exact_scale
    yield "lse is 1.4427 times what it should be: base 2 instead of base e", want * e2
    yield "lse is 0.6931 times what it should be: a natural logarithm taken for base 2", want / e2
    yield "lse lacks the row maximum: it is the logarithm of the normalizer alone", log_l
    yield "lse is the row maximum alone: the logarithm of the normalizer is missing", m
    yield "lse has the row maximum in base e and the normalizer in base 2", m + log_l * e2
    yield "lse has the row maximum in base 2 and the normalizer in base e", m * e2 + log_l
    yield "lse has the wrong sign", -want
    yield "lse subtracts the row maximum instead of adding it", log_l - m
    yield "lse is the normalizer itself, not its logarithm", l
    yield "lse is the row maximum plus the normalizer, not plus its logarithm", m + l
    if scale:
        yield "the row maximum in lse lacks the scale", m / scale + log_l
        yield "the row maximum in lse is scaled twice", m * scale + log_l


def _shift(r: Result, place: str) -> str | None:
    """lse off by one constant in every wrong row."""
    assert r.lse is not None
    bad = (r.ratio_lse > 1) & r.seen
    off = r.lse[bad] - r.value.lse[bad]
    slack = 4 * float(r.bound.lse[bad].max()) + 1e-4 * float(np.abs(off).max())
    if off.size == 0 or np.ptp(off) > slack or float(np.abs(off).min()) < 1e-3:
        return None
    size = float(np.abs(off).mean())
    all_keys = r.x.k.shape[2]
    names = {math.log(all_keys): f"ln {all_keys}, of all keys", math.log(2): "ln 2"}
    close = max(1e-4, min(slack, size / 10))  # a bound wider than the number would name anything
    name = next((f" ({t})" for v, t in names.items() if v and abs(v - size) < close), "")
    if off.mean() < 0:
        return f"lse is too small by {short(size)}{name or _without_a_key(r, size)} in {place}"
    return f"lse is too large by {short(size)}{name} in {place}"


def _without_a_key(r: Result, size: float) -> str:
    """Which key's weight lse lacks in the worst row, if that is one key's."""
    row = np.unravel_index(int(r.ratio_lse.argmax()), r.ratio_lse.shape)
    p = r.at.p[row]
    with np.errstate(divide="ignore"):
        off = np.abs(-np.log1p(-np.minimum(p, 1.0)) - size)
    alike = np.flatnonzero(off <= max(2 * float(r.bound.lse[row]), 1e-6))
    if not alike.size:
        return ""
    which = f"key {alike[0]}" if alike.size == 1 else f"one of {alike.size} keys"
    return f", the weight of {which},"
