"""Rows: what all rows with a wrong result have in common that no right row has.

A rule that names a threshold is said only after the problem was run again on either side of
that threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flashcheck.case import BadReply, Case
from flashcheck.explanation import patterns, phrases
from flashcheck.explanation.weights import CLOSE, Result, Row, compare, measure
from flashcheck.formats import FORMATS, Array, Bools
from flashcheck.inputs import Inputs

OVERFLOW = {"float32": 88.72, "float16": 11.09, "float64": 709.78}
"""exp of more than this overflows the format."""

UNDERFLOW = {"float32": -103.97, "float16": -17.33, "float64": -745.13}
"""exp of less than this rounds to 0."""


def sentence(case: Case, r: Result) -> str | None:
    """What the wrong rows of out have in common, if it is NaN, 0, never written or extreme."""
    bad = r.wrong_rows
    if not bad.any():
        return None
    never = unwritten(case, r.x)
    if never is not None:
        return never
    if not (bad & r.seen).any():
        return _keyless(case, r, bad)
    kind = _kind(r, bad)
    found = _extreme(case, r, bad, kind) or _hidden_first(case, r, bad, kind)
    return found or None


def plain(r: Result) -> str | None:
    """Which rows are NaN, infinite or 0, where nothing explains it."""
    bad = r.wrong_rows
    kind = _kind(r, bad)
    if kind is None:
        return None
    if kind == "0":
        return f"Output is 0 in {where(bad, r.judged_rows)}"
    wrong = r.out[r.wrong]
    nan, inf = int(np.isnan(wrong).sum()), int(np.isinf(wrong).sum())
    counts = [f"{n} {name}" for n, name in ((nan, "NaN"), (inf, "Inf")) if n]
    return (
        f"Output is {kind} in {where(bad, r.judged_rows)} "
        f"({phrases.join(counts)} of {r.out.size} elements)"
    )


def where(bad: Bools, judged: Bools) -> str:
    """Rows in words: "every row", "query 3", "queries 2 to 5 of head 1", "7 of 40 rows"."""
    if (bad | ~judged).all():
        return "every row" if bad.sum() != 1 else phrases.row_name(bad.shape, _one(bad))
    b, h, length = bad.shape
    heads = np.asarray(bad.any(2))
    lists = [tuple(np.flatnonzero(bad[i, j])) for i, j in np.argwhere(heads)]
    if all(rows == lists[0] for rows in lists):
        part = len(lists[0]) < max(length, 2)
        text = phrases.queries(int(i) for i in lists[0]) if part else "every row"
        if heads.all():
            return text + (" of every head" if b * h > 1 else "")
        used_b, used_h = np.flatnonzero(heads.any(1)), np.flatnonzero(heads.any(0))
        if len(used_b) * len(used_h) == len(lists):
            if len(used_h) < h:
                text += f" of {phrases.those((int(i) for i in used_h), 'head', 'heads')}"
            if len(used_b) < b:
                text += f" of batch {phrases.join([str(i) for i in used_b])}"
            return text
    return f"{int(bad.sum())} of {int(judged.sum())} rows"


def _kind(r: Result, bad: Bools) -> str | None:
    """What every wrong element is: "NaN", "infinite", "NaN or infinite" or "0"."""
    wrong = r.out[r.wrong]
    if not np.isfinite(wrong).any():
        if np.isnan(wrong).all():
            return "NaN"
        return "infinite" if np.isinf(wrong).all() else "NaN or infinite"
    rows = r.out[bad]
    return "0" if (rows == 0).all() else None


def unwritten(case: Case, x: Inputs) -> str | None:
    """Rows that keep what the output buffer held, found by filling new tensors with NaN."""
    try:
        filled = np.isnan(case.out(x, fresh_output_nan=True))
        kept = filled & ~np.isnan(case.out(x))
        for _ in range(3):
            if not filled.any() or kept.any():
                break
            # The memory may hold NaN by chance, or from the run above: leave ones in it.
            case.out(x.with_(v=np.ones_like(x.v)))
            kept |= filled & ~np.isnan(case.out(x.with_()))
    except BadReply:
        return None
    if not kept.any():
        return None
    rows = np.asarray(kept.all(-1))
    if rows.any():
        return f"Output is never written in {where(rows, np.ones_like(rows))}"
    return f"{int(kept.sum())} of {kept.size} elements of the output are never written"


def _one(rows: Bools) -> Row:
    """The first of some rows."""
    b, h, i = np.argwhere(rows)[0]
    return int(b), int(h), int(i)


def _keyless(case: Case, r: Result, bad: Bools) -> str:
    got = r.out[bad]
    which = which_see_none(r, bad)
    if np.isnan(got).all():
        return f"Output is NaN in {which}, where it should be 0"
    if _is_mean(case, r.x, bad):
        return (
            f"Output is the mean of all values, hidden ones too, in {which}, where it should be 0"
        )
    return (
        _takes_in(case, r, bad)
        or f"Output is not 0 in {which} (it is {phrases.short(float(got.flat[0]))})"
    )


def which_see_none(r: Result, bad: Bools) -> str:
    """Rows that see no key, in words."""
    if bad.sum() == 1:
        return f"{phrases.row_name(bad.shape, _one(bad))}, which sees no key"
    return "every row that sees no key" if (bad | r.seen).all() else "rows that see no key"


def _is_mean(case: Case, x: Inputs, rows: Bools) -> bool:
    """Whether rows are the mean of all values of their head, whatever q, k and v hold.

    One key alone tells nothing: then its value is the mean.
    """
    if x.k.shape[2] < 2:
        return False
    for seed in range(3):
        rng = np.random.default_rng(seed)
        q, k, v = (x.format.round(rng.standard_normal(t.shape)) for t in (x.q, x.k, x.v))
        other = x.with_(q=q, k=k, v=v)
        try:
            out = case.out(other)[rows]
        except BadReply:
            return False
        values = np.repeat(other.exact_v, x.heads_per_kv, axis=1)
        mean = np.broadcast_to(values.mean(2)[:, :, None], (*x.q.shape[:3], v.shape[3]))[rows]
        if not np.abs(out - mean).max() <= CLOSE * np.abs(values).max():
            return False
    return True


def _takes_in(case: Case, r: Result, bad: Bools) -> str | None:
    """Which keys rows that see none take in."""
    measured, row = measure(case, r.x), r.worst_row(bad)
    if measured is None or row is None or not measured.usable(row):
        return None
    try:
        if case.out(r.x.with_(v=np.zeros_like(r.x.v)))[bad].any():
            return None  # it is made of something else than values
    except BadReply:
        return None
    taken = np.abs(measured.w) > CLOSE / r.x.k.shape[2]
    if not taken[row].any():
        return None
    if (taken[bad] == taken[row]).all():
        which = which_see_none(r, bad)
    else:
        which = f"{phrases.row_name(bad.shape, row)}, which sees no key"
    what = phrases.keys(int(j) for j in np.flatnonzero(taken[row]))
    elsewhere = taken[row].copy()
    elsewhere[patterns.sequence(r, row)] = False
    if elsewhere.any():
        what += ", of another sequence," if r.x.pages is None else ", past the end of its sequence,"
    return f"Output takes in {what} in {which}, where it should be 0"


def _extreme(case: Case, r: Result, bad: Bools, kind: str | None) -> str | None:
    """Scores beyond what exp, or the format of the scores, can hold."""
    row = r.worst_row(bad)
    good = r.judged_rows & r.seen & ~bad
    names = ("float64",) if r.x.dtype == "float64" else ("float32", "float16")
    if row is None or (bad & ~r.seen).any():
        return None

    def all_and_only(rule: Bools) -> bool:
        return bool(rule[bad].all()) and not rule[good].any()

    def rows(what: str, of: str = "whose") -> str:
        if (r.judged_rows & r.seen).sum() == 1:
            return f"{phrases.row_name(bad.shape, row)}, {of} {what}"
        return f"every row {of} {what}"

    top = _tops(r)
    for name in names:
        limit = OVERFLOW[name]
        if kind != "0" and all_and_only(top > limit) and _confirmed(case, r, row, _top, limit):
            text = f"Output is {kind or 'wrong'} in {rows(f'largest score exceeds {limit}')}"
            if not _fails_level(case, r, row):
                return f"{text}, and right where all of its scores are that large"
            # What overflows is infinite, and NaN divided by a normalizer that is.
            if kind is not None:
                return f"{text} (exp overflows in {name}): the maximum is not subtracted"
    for name in names:
        limit = UNDERFLOW[name]
        if kind and all_and_only(top < limit) and _confirmed(case, r, row, _top, limit):
            cause = "a running maximum that starts at 0"
            if _overflows(case, r, row, OVERFLOW[name]):
                cause = "the maximum is not subtracted"
            return (
                f"Output is {kind} in {rows(f'every score is below {limit}', 'where')} "
                f"(exp underflows to 0 in {name}): {cause}"
            )
    if r.x.dtype == "float16" and kind != "0":
        limit = FORMATS["float16"].max_finite
        size = _products(r.x).max(-1)
        if all_and_only(size > limit) and _confirmed(case, r, row, _product, limit):
            large = rows(f"some |q.k| exceeds {limit:g}, the largest finite float16", "where")
            return f"Output is {kind or 'wrong'} in {large}: scores are held in float16"
    return None


def _tops(r: Result) -> Array:
    return np.where(r.seen, r.at.m, 0.0)


def _products(x: Inputs) -> Array:
    k = np.repeat(x.k, x.heads_per_kv, axis=1)
    return np.where(x.visible, np.abs(x.q @ k.swapaxes(2, 3)), 0.0)


def _top(case: Case, x: Inputs, row: Row) -> float:
    return float(case.attention(x).m[row])


def _product(case: Case, x: Inputs, row: Row) -> float:
    return float(_products(x)[row].max())


def _confirmed(
    case: Case,
    r: Result,
    row: Row,
    size: Callable[[Case, Inputs, Row], float],
    limit: float,
) -> bool:
    """Whether the row is right with q scaled to 0.6 times the limit, and wrong just beyond.

    Without a cap, so that it is the size of the score that tells, and not what the cap takes off.
    """
    if r.x.bias is not None:
        return False
    x = r.x.with_(softcap=0.0)
    here = size(case, x, row)
    verdicts = []
    for factor in (0.6, 1.06):
        q = x.format.round(x.q * (factor * limit / here))
        other = compare(case, x.with_(q=q))
        if other is None or not other.judged_rows[row]:
            return False
        verdicts.append(bool(other.wrong_rows[row]))
    return verdicts == [False, True]


def _overflows(case: Case, r: Result, row: Row, limit: float) -> bool:
    """Whether the row, with the signs of its scores turned, fails on large scores too."""
    x = r.x.with_(softcap=0.0)
    lowest = float(np.where(x.visible, case.attention(x).s, 0.0)[row].min())
    if lowest >= 0:
        return False
    q = x.format.round(x.q * (1.06 * limit / lowest))
    other = compare(case, x.with_(q=q))
    return other is not None and bool(other.wrong_rows[row])


def _fails_level(case: Case, r: Result, row: Row) -> bool:
    """Whether the row fails as well with every key like the one of its largest score."""
    b, h, _ = row
    top = int(np.where(r.x.visible[row], r.at.s[row], -np.inf).argmax())
    k = r.x.k.copy()
    k[b, h // r.x.heads_per_kv] = k[b, h // r.x.heads_per_kv, top]
    other = compare(case, r.x.with_(k=k, softcap=0.0))
    return other is not None and bool(other.wrong_rows[row])


def _hidden_first(case: Case, r: Result, bad: Bools, kind: str | None) -> str | None:
    """NaN or 0 in the rows whose first keys are hidden."""
    mask = r.x.mask
    if kind is None or mask is None or (bad & ~r.seen).any():
        return None
    lead = np.where(r.seen, r.x.visible.argmax(-1), 0)
    least = int(lead[bad].min())
    good = r.judged_rows & r.seen & ~bad
    if least < 1 or (lead[good] >= least).any():
        return None
    shown = np.array(mask)
    shown[..., 0] = True if mask.dtype == bool else 0.0
    other = compare(case, r.x.with_(mask=shown))
    if other is None or (other.wrong_rows & bad).any():
        return None
    cause = " (a maximum of -inf minus itself is NaN)" if math.isnan(r.out[bad].max()) else ""
    first = "first key is" if least == 1 else f"first {least} keys are"
    rows = "every row whose"
    if (r.judged_rows & r.seen).sum() == 1:
        rows = f"{phrases.row_name(bad.shape, _one(bad))}, whose"
    return f"Output is {kind} in {rows} {first} hidden{cause}; right when key 0 is visible"
