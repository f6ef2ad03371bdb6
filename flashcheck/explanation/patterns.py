"""Patterns: what is wrong with one row's measured attention weights, in one sentence.

Every pattern predicts all of the row's weights and is named only where the prediction holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from flashcheck.explanation import phrases
from flashcheck.explanation.phrases import keys, row_name, short
from flashcheck.explanation.weights import CLOSE, Result, Row, Weights
from flashcheck.formats import FORMATS, Array, Bools

NO_KEY = "Output takes in no key"

LEFT = 2e-2
"""Share of the largest error that weights of other scores may leave."""

APART = 5e-2
"""Runs of keys whose factors differ by less may differ by roundings alone."""


def sentence(r: Result, weights: Weights, row: Row) -> str | None:
    """The first pattern that the row's weights follow; None where they are right or strange."""
    w, p, tol = weights.w[row], weights.p[row], weights.tol[row]
    differs = np.abs(w - p) > tol
    if not differs.any():
        return None
    name = row_name(r.at.out.shape, row)
    visible = r.x.visible[row]
    return (
        _missing(name, w, p, tol, differs)
        or _hidden(r, row, name, w, tol, visible)
        or _elsewhere(r, weights, row, name)
        or _common_factor(r, row, name, w, p, tol)
        or _groups(r, row, name, w, p, tol, named=True)
        or _other_scores(r, row, name, w, tol)
        or _groups(r, row, name, w, p, tol, named=False)
    )


def right(weights: Weights, rows: Bools) -> bool:
    """Whether every measured weight of these rows is within its bound."""
    w, p, tol = weights.w[rows], weights.p[rows], weights.tol[rows]
    return bool((np.abs(w - p) <= tol).all())


def _agree(w: Array, predicted: Array, tol: Array) -> bool:
    """Whether a prediction holds for every key of the row."""
    return bool((np.abs(w - predicted) <= 2 * tol + CLOSE * np.abs(predicted)).all())


def _instead(w: Array, p: Array, predicted: Array, tol: Array) -> bool:
    """Whether other weights than the right ones hold for every key, and leave little to explain."""
    left, off = np.abs(w - predicted), np.abs(w - p)
    return (
        _agree(w, predicted, tol)
        and not _agree(p, predicted, tol)
        and bool((left <= 2 * tol + LEFT * off.max()).all())
    )


def _missing(name: str, w: Array, p: Array, tol: Array, differs: Bools) -> str | None:
    gone = differs & (np.abs(w) <= tol) & (p > 0)
    if not gone.any():
        return None
    if gone[p > tol].all():
        if (np.abs(w) > tol)[p == 0].any():
            return None  # it takes in keys that it should not see
        return f"{NO_KEY}: every weight of {name} is 0"
    rest = np.where(gone, 0.0, p)
    what = keys(int(j) for j in np.flatnonzero(gone))
    owner = "" if name == "query 0" else f" in {name}"
    # exp rounds to zero below half of float16's smallest number, 2^-25.
    weight = p / p.max()
    most, least = float(weight[gone].max()), float(weight[~gone & (p > 0)].min())
    if most <= 2.0**-25 < least:
        text = f"Output is missing the contribution of {what}{owner}, which weighs "
        text += f"{short(most)} of the largest weight at most"
        near = most > 2.0**-27
        return f"{text}: an intermediate underflows in float16" if near else text
    if _agree(w, rest / rest.sum(), tol):
        return f"Output is missing the contribution of {what}{owner}, as if not there at all"
    if _agree(w, rest, tol):
        return (
            f"Output is missing the contribution of {what}{owner}, which the normalizer does count"
        )
    return None


def _hidden(r: Result, row: Row, name: str, w: Array, tol: Array, visible: Bools) -> str | None:
    taken = ~visible & (np.abs(w) > tol)
    if not taken.any():
        return None
    what = keys(int(j) for j in np.flatnonzero(taken))
    text = f"{phrases.sentence_case(name)[:-1]} also takes in {what}"
    own = sequence(r, row)
    outside = taken.copy()
    outside[own] = False
    if outside.any():
        end = own.stop - own.start
        count = f"{end} key{'' if end == 1 else 's'}"
        if r.x.pages is not None:
            return f"{text}, past the {count} of its sequence"
        return f"{text}, although its sequence has {count}{_from(own)}"
    by = "causal mask" if r.x.is_causal else "window" if r.x.mask is None else "mask"
    return f"{text}, which the {by} hides"


def sequence(r: Result, row: Row) -> slice:
    """The keys of the row's sequence: all, without sequences."""
    b, _, i = row
    first, last = (n[b if len(n) > 1 else 0, i] for n in r.x.span[:2])
    return slice(int(first), int(last))


def _from(own: slice) -> str:
    return f", {_span(own)}" if own.start < own.stop else ""


def _elsewhere(r: Result, weights: Weights, row: Row, name: str) -> str | None:
    """Weights of another query, head, batch element or key head."""
    b, h, i = row
    batch, heads, length, _ = r.at.p.shape
    w, p, tol = weights.w[row], weights.p[row], weights.tol[row]
    others: list[tuple[str, Row]] = [
        *((f"query {j}", (b, h, j)) for j in range(length) if j != i),
        *((f"head {g}", (b, g, i)) for g in range(heads) if g != h),
        *((f"batch {c}", (c, h, i)) for c in range(batch) if c != b),
    ]
    hits = [(what, other) for what, other in others if _instead(w, p, weights.p[other], tol)]
    reads = _key_head(r, row, w, p, tol)
    if reads is not None:
        return reads
    # Two matches name nothing: the other rows may all be equal.
    if hits and all(_agree(weights.p[hits[0][1]], weights.p[o], tol) for _, o in hits):
        return f"{phrases.sentence_case(name)[:-1]} has the weights of {hits[0][0]}"
    return None


def _key_head(r: Result, row: Row, w: Array, p: Array, tol: Array) -> str | None:
    b, h, i = row
    group, kv = r.x.heads_per_kv, r.x.k.shape[1]
    if kv == 1:
        return None
    hits = []
    for g in range(kv):
        if g == h // group:
            continue
        s = r.x.exact_q[b, h, i] @ r.x.exact_k[b, g].T * r.x.exact_scale
        predicted = _softmax(s + _bias(r, row), r.x.visible[row])
        if _instead(w, p, predicted, tol):
            hits.append(g)
    if len(hits) != 1:
        return None
    return f"Query head {h} reads key head {hits[0]} instead of {h // group}{_map(r, h, hits[0])}"


def _map(r: Result, h: int, g: int) -> str:
    if r.x.heads_per_kv > 1 and g == h % r.x.k.shape[1]:
        return f" (h modulo the {r.x.k.shape[1]} key heads, not h // {r.x.heads_per_kv})"
    return ""


def together(r: Result, weights: Weights, row: Row) -> str | None:
    """Weights that are right one by one, where the output is theirs and yet wrong."""
    b, h, _ = row
    w, p, tol = weights.w[row], weights.p[row], weights.tol[row]
    got, made = r.out[row], w @ r.x.exact_v[b, h // r.x.heads_per_kv]
    if np.abs(got - made).max() * 4 > np.abs(got - r.value.out[row]).max():
        return None
    name = row_name(r.at.out.shape, row)
    return _common_factor(r, row, name, w, p, tol) or (
        f"The weights of {name} are right one by one, and not together: they sum to "
        f"{short(float(w.sum()))}"
    )


def wrong_values(r: Result, row: Row) -> str | None:
    """With right weights: whose values the row's output is made of, or in which format."""
    b, h, _ = row
    group, kv = r.x.heads_per_kv, r.x.v.shape[1]
    p, got = r.at.p[row], r.out[row]
    size = p @ np.abs(r.x.exact_v[b, h // group])
    for c in range(r.x.v.shape[0]):
        for g in range(kv):
            if (c, g) == (b, h // group):
                continue
            if _factor_of(r, row, size, (c, g)):
                where = f"head {g}" if c == b else f"head {g} of batch {c}"
                own = "" if c == b else f" of batch {b}"
                return f"Query head {h} takes v_descale of {where} instead of {h // group}{own}"
            if np.allclose(got, p @ r.x.exact_v[c, g], rtol=CLOSE, atol=CLOSE * float(size.max())):
                where = f"value head {g}" if c == b else f"value head {g} of batch {c}"
                return (
                    f"Query head {h} reads {where} instead of {h // group}"
                    f"{_map(r, h, g) if c == b else f' of batch {b}'}"
                )
    return _scaled_values(r, row) if r.x.v_descale is not None else _narrow_values(r, row)


def _factor_of(r: Result, row: Row, size: Array, other: tuple[int, int]) -> bool:
    """Whether the row has its own values, with the factor of another head."""
    if r.x.v_descale is None:
        return False
    b, h, _ = row
    factor = np.broadcast_to(r.x.descale("v"), (*r.x.v.shape[:3], 1))[other]
    made = r.at.p[row] @ (r.x.v[b, h // r.x.heads_per_kv] * factor)
    return bool(np.allclose(r.out[row], made, rtol=CLOSE, atol=CLOSE * float(size.max())))


def _scaled_values(r: Result, row: Row) -> str | None:
    """V with another factor than v_descale's."""
    got, want = r.out[row], r.value.out[row]
    told = np.abs(want) > 4 * r.bound.out[row]
    if not told.any():
        return None
    ratios = got[told] / want[told]
    if np.ptp(ratios) > 2 * float((r.bound.out[row][told] / np.abs(want[told])).max()):
        return None
    name = row_name(r.at.out.shape, row)
    return (
        f"The weights of {name} are right; its values are {short(float(ratios.mean()))} times what "
        "v_descale makes them"
    )


def _narrow_values(r: Result, row: Row) -> str | None:
    """V in a format of a narrower range: too small or too large for it."""
    b, h, _ = row
    v, p = r.x.v[b, h // r.x.heads_per_kv], r.at.p[row]
    fmt = FORMATS["float16"]
    for large in (math.inf, fmt.max_finite):
        with np.errstate(over="ignore", invalid="ignore"):
            predicted = p @ fmt.round(np.clip(v, -large, large))
            error = np.abs(r.out[row] - predicted).max()
        if error * 4 <= np.abs(r.out[row] - r.value.out[row]).max():
            name = row_name(r.at.out.shape, row)
            return f"The weights of {name} are right; its values are V converted to float16"
    return None


def _common_factor(r: Result, row: Row, name: str, w: Array, p: Array, tol: Array) -> str | None:
    total = float(w.sum())
    if total == 0 or abs(total - 1) < CLOSE or not _agree(w, total * p, tol):
        return None
    l, lse = float(r.at.l[row]), float(r.at.lse[row])
    with np.errstate(over="ignore"):
        whole = float(np.exp(lse))
    text = f"The weights of {name} sum to {short(total)} instead of 1"
    if math.isclose(total, l, rel_tol=CLOSE):
        return f"{text}, as if the output were not divided by the normalizer ({short(l)})"
    extra = (1 / total - 1) * whole
    own = sequence(r, row)
    padded = own.stop - own.start + round(extra)
    exact = abs(extra - round(extra)) < 2e-3 * max(extra, 1.0) + whole * float(tol.max())
    if extra > 0.9 and exact and padded % 8 == 0 and extra < 1024:
        return (
            f"{text}, as if {round(extra)} more {'key' if round(extra) == 1 else 'keys'} with "
            f"score 0 joined the normalizer ({padded} keys in all: padding)"
        )
    small = "too small" if abs(total) > 1 else "too large"
    factor = total if abs(total) > 1 else 1 / total
    if r.lse is not None and r.ratio_lse[row] <= 1:
        return (
            f"{text}, while its lse is right: the accumulator is too "
            f"{'large' if abs(total) > 1 else 'small'} by a factor of {short(factor)}, or what it "
            "is divided by is not the normalizer of lse"
        )
    return f"{text}: the normalizer is {small} by a factor of {short(factor)}"


def _groups(
    r: Result, row: Row, name: str, w: Array, p: Array, tol: Array, *, named: bool
) -> str | None:
    """Runs of keys, each scaled by one factor.

    Factors that nothing names are told only of two runs, and only if keys share them.
    """
    runs = _segments(w, p, tol)
    if runs is None or not 2 <= len(runs) <= 5:
        return None
    s = np.where(r.x.visible[row], r.at.s[row], -np.inf)
    # The run that holds the maximum is the one the others should have been rescaled to.
    tops = [float(s[part].max()) for part, _ in runs]
    sums = [float(w[part].sum()) for part, _ in runs]
    equal = all(math.isclose(total, 1 / len(runs), rel_tol=CLOSE) for total in sums)
    equal &= not math.isclose(float(p[runs[0][0]].sum()), sums[0], rel_tol=CLOSE)
    base = max(range(len(runs)), key=lambda g: tops[g])
    if len(runs) == 2 and abs(runs[base][1] - 1) > CLOSE and abs(runs[1 - base][1] - 1) < CLOSE:
        base = 1 - base
    unit = runs[base][1]
    said = []
    for g, (part, factor) in enumerate(runs):
        ratio = factor / unit
        if g == base or math.isclose(ratio, 1, rel_tol=APART):
            continue
        said.append(_weighs(part, ratio, max(tops) - tops[g], g < base))
    if equal and not all(cause for _, cause in said):
        spans = phrases.join([_span(part) for part, _ in runs])
        return (
            f"In {name} {spans} weigh 1/{len(runs)} each in total, whatever their scores: "
            "partial results are averaged, not merged by their maxima"
        )
    known = all(cause for _, cause in said)
    few = len(runs) == 2 and int((p > 20 * tol).sum()) > 3
    if not said or (named and not known) or not (known or few):
        return None
    relative = "" if abs(unit - 1) < CLOSE else f" against {_span(runs[base][0])}"
    first, cause = said[0]
    more = "".join(f", {text[0].lower()}{text[1:]}" for text, _ in said[1:])
    causes = {cause for _, cause in said}
    cause = cause if len(causes) == 1 or not more else ""
    visible = np.isfinite(s)
    if "was not rescaled" in cause and len(runs) == int(visible.sum()) and np.ptp(w[visible]) == 0:
        # One key a run and all alike: that is also what scores of zero look like.
        cause += ", or the scores were not read"
    return f"{first}{more} in {name}{relative}{cause}"


def _weighs(part: slice, ratio: float, lead: float, earlier: bool) -> tuple[str, str]:
    """("Keys 0 to 15 weigh 54.6 times too much", the cause or "")."""
    one = part.stop - part.start == 1
    verb = "weighs" if one else "weigh"
    if ratio > 1:
        text = f"{_span(part).capitalize()} {verb} {short(ratio)} times too much"
    elif ratio > 0:
        text = f"{_span(part).capitalize()} {verb} {short(1 / ratio)} times too little"
    else:
        text = f"{_span(part).capitalize()} {verb} {short(ratio)} times what it should"
    whose = "the later maximum's" if earlier else "the other keys' maximum's"
    if lead > 0 and ratio > 0:
        its = "its" if one else "their"
        shown = f"(exp of {short(lead)}, {whose} lead)"
        if math.isclose(math.log(ratio), lead, abs_tol=CLOSE + 1e-3 * lead):
            return f"{text} {shown}", f": {its} contribution was not rescaled"
        if math.isclose(math.log(ratio), -lead, abs_tol=CLOSE + 1e-3 * lead):
            return f"{text} {shown}", f": {its} contribution was rescaled twice"
    return text, ""


def _span(part: slice) -> str:
    return keys(range(part.start, part.stop))


def _segments(w: Array, p: Array, tol: Array) -> list[tuple[slice, float]] | None:
    """Runs of keys with one common w / p; None where some key fits no run.

    A key whose exact weight is below its bound tells nothing and joins its neighbour.
    """
    told = p > 20 * tol
    if told.sum() < 2:
        return None
    starts: list[int] = []
    ratios: list[list[float]] = []
    for j in np.flatnonzero(told):
        ratio = float(w[j] / p[j])
        slack = CLOSE + 2 * float(tol[j] / p[j])
        if not ratios or abs(ratio - ratios[-1][0]) > slack * max(abs(ratio), abs(ratios[-1][0])):
            starts.append(int(j) if ratios else 0)
            ratios.append([])
        ratios[-1].append(ratio)
    ends = [*starts[1:], len(p)]
    return [
        (slice(a, e), float(np.median(values)))
        for a, e, values in zip(starts, ends, ratios, strict=True)
    ]


def _other_scores(r: Result, row: Row, name: str, w: Array, tol: Array) -> str | None:
    """The weights of other scores: another scale, no bias, rounded scores."""
    visible, s, bias = r.x.visible[row], r.at.s[row], _bias(r, row)
    for text, scores in _candidates(r, s, bias):
        if _instead(w, r.at.p[row], _softmax(scores, visible), tol):
            return f"The weights of {name} are those of {text}"
    factor = _slope(w, s, tol, visible)
    if factor is not None and abs(factor - 1) > CLOSE:
        predicted = _softmax(factor * s, visible)
        if _instead(w, r.at.p[row], predicted, tol):
            return f"The weights of {name} are those of scores {short(factor)} times as large"
    return _rounded_scores(r, row, name, w, s, bias)


def _rounded_scores(r: Result, row: Row, name: str, w: Array, s: Array, bias: Array) -> str | None:
    """Scores, or the factors of q.k, rounded to a narrower format: the one that explains most."""
    x, visible = r.x, r.x.visible[row]
    b, h, i = row
    q, k = x.q[b, h, i], x.k[b, h // x.heads_per_kv]
    names = {"float64": ("float32",), "float32": ("tf32", "float16", "bfloat16")}
    tried: list[tuple[float, str]] = [(math.inf, "")]
    for fmt in names.get(x.dtype, ("float16", "bfloat16")):
        round_ = FORMATS[fmt].round
        factors = round_(q) @ round_(k).T * x.exact_scale + bias
        for what, scores in (("scores", round_(s)), ("q and k", factors)):
            if np.isfinite(scores).all():
                error = float(np.abs(w - _softmax(scores, visible)).max())
                tried.append((error, f"{what} rounded to {fmt}"))
    least = min(error for error, _ in tried)
    # tf32 has the precision of float16: of two that explain as much, the first is named.
    error, text = next(t for t in tried if t[0] <= 1.1 * least)
    if error * 4 > float(np.abs(w - r.at.p[row]).max()):
        return None
    return f"The weights of {name} are close to those of {text}"


def _candidates(r: Result, s: Array, bias: Array) -> Iterator[tuple[str, Array]]:
    x = r.x
    scale, default = x.exact_scale, 1 / math.sqrt(x.q.shape[3])
    raw = s - bias
    if bias.any():
        yield "scores without the mask's bias", raw
        yield "scores whose bias is multiplied by the scale too", raw + scale * bias
        yield "scores whose bias is multiplied by log2(e)", raw + bias / math.log(2)
        yield "scores whose bias is multiplied by ln(2)", raw + bias * math.log(2)
    if scale:
        if x.scale is not None:
            yield "the default scale 1/sqrt(D): scale is ignored", raw * (default / scale) + bias
            yield "scale times 1/sqrt(D)", raw * default + bias
            yield "the scale's absolute value", raw * math.copysign(1.0, scale) + bias
        yield "scores that were not scaled", raw / scale + bias
        yield "scores that were scaled twice", raw * scale + bias
        yield "scores times log2(e): exp is used where exp2 is meant", s / math.log(2)
        yield "scores times ln(2): exp2 is used where exp is meant", s * math.log(2)


def _slope(w: Array, s: Array, tol: Array, visible: Bools) -> float | None:
    """The factor by which all score differences are off, from the two extreme scores."""
    told = visible & (w > 50 * tol)
    if told.sum() < 3:
        return None
    index = np.flatnonzero(told)
    low, high = index[s[index].argmin()], index[s[index].argmax()]
    if s[high] - s[low] < 0.1:
        return None
    return float(math.log(w[high] / w[low]) / (s[high] - s[low]))


def _bias(r: Result, row: Row) -> Array:
    bias = r.x.bias
    return np.zeros(r.at.s.shape[-1]) if bias is None else np.asarray(bias[row])


def _softmax(s: Array, visible: Bools) -> Array:
    if not visible.any():
        return np.zeros_like(s)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        top = s[visible].max()
        e = np.where(visible, np.exp(np.minimum(s - top, 0.0)), 0.0)
    return np.asarray(e / e.sum())
