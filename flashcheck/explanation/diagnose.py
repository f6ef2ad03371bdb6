"""Diagnose: one sentence that says what is wrong with a kernel's result.

Everything said was measured by running the kernel again, on the failing input and on inputs
made from it. Patterns are tried from the most to the least telling; the first that predicts
the result names it, and one that does not says nothing.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from flashcheck.case import Case
from flashcheck.explanation import gradients, logsums, patterns, phrases, rows
from flashcheck.explanation.phrases import keys, row_name, short
from flashcheck.explanation.weights import (
    MAX_KEYS,
    Recorder,
    Result,
    Row,
    another,
    compare,
    measure,
    taken_in,
)
from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.judge import Judge
from flashcheck.law import Law
from flashcheck.sequences import lengths, with_length, with_lengths
from flashcheck.verdict import Check, Verdict

ROUNDING = 1e-2
"""A relative error up to this may be that of a rounding."""

_SAID = {
    "nondeterministic": "Two equal calls give different results",
    "reads out of bounds": "The result depends on memory that holds none of its input",
    "reads hidden keys": "The result depends on keys that no query sees",
    "output not written": "The result depends on what the output buffer held before",
    "not batch invariant": "A batch element alone gives other bits than among others",
    "inputs modified": "The inputs are changed",
    "output form": "The result has the wrong form",
    "masked rows": "A row that sees no key is not NaN, as the kernel declares it",
}
"""Symptoms that are no comparison with an exact result."""


def diagnose(case: Case, law: Law, check: Check) -> str:
    """The sentence about a failed `check` of `law` on `case`."""
    return diagnosed(case, law, check)[0]


def diagnosed(case: Case, law: Law, check: Check) -> tuple[str, Check]:
    """The sentence about a failed `check` of `law` on `case`, and the check with the numbers of the
    output that the sentence is about."""
    text, shown = _without_numbers(check), check
    if text is None:
        text = gradients.sentence(case, check) if law.backward else None
        if text is None and (measured := _measured(case, law, check)) is not None:
            text, shown = measured
        text = text or rows.unwritten(case, case.inputs) or _fallback(law, check)
    elif check.symptom in ("output not written", "reads hidden keys"):
        unwritten = rows.unwritten(case, case.inputs)
        if unwritten is not None:
            text = unwritten
        elif (measured := _measured(case, law, check)) is not None:
            text, shown = measured
    return phrases.sentence_case(text), shown


def unmeasured(law: Law, check: Check) -> str:
    """The sentence that takes no run of the kernel."""
    return phrases.sentence_case(_without_numbers(check) or _fallback(law, check))


def _without_numbers(check: Check) -> str | None:
    """The sentence of a failure that is no wrong number."""
    if check.verdict is Verdict.TIMEOUT:
        return f"The kernel does not return: {check.message}"
    if check.verdict is Verdict.CRASH:
        if check.symptom.startswith("raises "):
            return f"The kernel {check.symptom}: {check.message}".rstrip(": ")
        return f"The kernel's process {check.message}"
    said = _SAID.get(check.symptom)
    return None if said is None else f"{said}: {check.message}".rstrip(": ")


def _measured(case: Case, law: Law, check: Check) -> tuple[str, Check] | None:
    """What is wrong with the first wrong result among those that the law asks for, and the check
    with the numbers of that output; rather with the output that is worst by the check."""
    recorder = Recorder(case.runner)
    again = Case(
        recorder, case.target, case.problem, case.config, case.device, case.space, case.captured
    )  # fmt: skip
    law.check(again)
    done: list[Inputs] = []
    found: list[tuple[str, Check]] = []
    for x in (again.inputs, *recorder.inputs):
        if any(x is other for other in done):
            continue
        done.append(x)
        result = compare(again, x)
        if result is None or not ((result.ratio > 1).any() or (result.ratio_lse > 1).any()):
            continue
        text = wrong_result(again, result)
        if text is None:
            continue
        shown = _of_output("out" if result.wrong.any() else "lse", case, law, check)
        if shown is None:
            continue
        own = x is again.inputs
        text = text if own else f"{text} (on an input that {law.name} makes from this one)"
        if shown is check:
            return text, shown
        found.append((text, shown))
    return found[0] if found else None


class _Only(Judge):
    """A judge of one output alone."""

    def __init__(self, law: Law, output: str) -> None:
        super().__init__(law.name, law.runs)
        self.output = output

    def within(self, output: str, got: Array, expected: Array, bound: Array, **how: Any) -> Array:
        if output != self.output:
            return np.zeros_like(got)
        return super().within(output, got, expected, bound, **how)

    def identical(self, output: str, first: Array, second: Array, symptom: str, what: str) -> None:
        if output == self.output:
            super().identical(output, first, second, symptom, what)

    def finite(self, output: str, got: Array, judged: Bools) -> None:
        if output == self.output:
            super().finite(output, got, judged)


def _of_output(output: str, case: Case, law: Law, check: Check) -> Check | None:
    """The check with the worst element of one output; None where that one is not wrong."""
    worst = check.worst
    if worst is None or worst.output not in ("out", "lse") or worst.output == output:
        return check
    judge = _Only(law, output)
    law.judge(case, judge)
    only = judge.check()
    if not only.failed or only.worst is None:
        return None
    return replace(check, worst=only.worst, ratio=only.ratio)


def wrong_result(case: Case, r: Result) -> str | None:
    """What is wrong with one result; None where no pattern fits."""
    if not r.wrong.any():
        return (
            _wrong_mask(case, r)
            or logsums.sentence(case, r)
            or _weights_behind_lse(case, r)
            or _coarse_lse(r)
        )
    return (
        _wrong_mask(case, r)
        or rows.sentence(case, r)
        or _wrong_weights(case, r)
        or _at_more_keys(case, r)
        or rows.plain(r)
        or _coarse(r)
    )


def _wrong_weights(case: Case, r: Result) -> str | None:
    """What is wrong with the weights, or the values, of the worst finite row."""
    finite = r.wrong_rows & np.isfinite(r.out).all(-1)
    row = r.worst_row(finite)
    if row is None:
        return None
    measured = measure(case, r.x)
    if measured is None or not measured.usable(row):
        return None
    text = patterns.sentence(r, measured, row)
    if text is not None:
        return (_at_more_keys(case, r) or text) if text.startswith(patterns.NO_KEY) else text
    if not patterns.right(measured, finite & r.seen):
        return None
    if _relative(r, row) <= ROUNDING:
        return _coarse(r)
    name = row_name(r.out.shape, row)
    return (
        patterns.together(r, measured, row)
        or patterns.wrong_values(r, row)
        or (f"The weights of {name} are right, the values it takes are not")
    )


def _weights_behind_lse(case: Case, r: Result) -> str | None:
    """What is wrong with the weights of the row with the worst lse, if they are wrong too."""
    b, h, i = np.unravel_index(int(r.ratio_lse.argmax()), r.ratio_lse.shape)
    row = (int(b), int(h), int(i))
    measured = measure(case, r.x)
    if measured is None or not measured.usable(row):
        return None
    return patterns.sentence(r, measured, row)


def _at_more_keys(case: Case, r: Result) -> str | None:
    """Which keys are missing among more keys, where a row of few takes in none."""
    if not (r.wrong_rows & r.seen).any() or r.x is not case.inputs:
        return None
    sizes = lengths(case.problem)
    if (np.where(np.isfinite(r.out), r.out, 0.0)[r.wrong_rows] != 0).any() or len(sizes) > 1:
        return None
    n = sizes[0][1]
    if n >= 100 or r.x.mask is not None or r.x.is_causal or r.x.placed:
        return None
    longer, x = another(case, with_length(case.problem, keys=100))
    found = taken_in(longer, x)
    if found is None or not found[1].all():
        return None
    missing = np.asarray((x.visible & ~found[0]).any((0, 1, 2)))
    if not missing.any() or missing.sum() == 100:
        return None
    kind = "NaN" if np.isnan(r.out[r.wrong_rows]).any() else "0"
    return (
        f"Output is {kind} with {n} {'key' if n == 1 else 'keys'}; with 100 keys it takes in all "
        f"but {keys(int(j) for j in np.flatnonzero(missing))}"
    )


# -- masks --------------------------------------------------------------------------------


def _wrong_mask(case: Case, r: Result) -> str | None:
    """A mask that hides other keys than it should, as q = 0 shows."""
    if r.x is not case.inputs or not (r.x.is_causal or r.x.mask is not None):
        return None
    return _causal(case) if r.x.is_causal else _given_mask(case, r)


def _causal(case: Case) -> str | None:
    p = case.problem
    sizes = lengths(p)
    side = max(n for size in sizes for n in size) + 2
    square = with_lengths(p, [(side, side)] * len(sizes))
    if square.len_k > MAX_KEYS:
        return None
    text = _causal_square(*another(case, square))
    if text is not None or all(queries == keys for queries, keys in sizes):
        return text
    # Right on a square: only the alignment is left.
    longer = with_lengths(p, [(queries + 2, keys + 2) for queries, keys in sizes])
    other, x = another(case, longer)
    found = taken_in(other, x)
    if found is None:
        return None
    turned = x.with_(bottom_right=not x.bottom_right).visible
    if _same(found, turned) and not _same(found, x.visible):
        now, meant = ("bottom-right", "top-left")
        if x.bottom_right:
            now, meant = meant, now
        return f"The causal mask is aligned {now} instead of {meant}"
    return None


def _causal_square(case: Case, x: Inputs) -> str | None:
    found = taken_in(case, x)
    if found is None or _same(found, x.visible):
        return None
    first, _, i, _ = (n[:, None, :, None] for n in x.span)
    j = np.arange(x.k.shape[2]) - first
    otherwise = x.with_(is_causal=False).visible  # by a window, or where a sequence ends
    if _same(found, (j <= i + 1) & otherwise):
        return "The causal mask lets query i see key i + 1"
    if _same(found, (j < i) & otherwise):
        return "Query i does not see its own key i under the causal mask"
    if _same(found, otherwise):
        return "is_causal is ignored: every query sees every key"
    if _same(found, (j >= i) & otherwise):
        return "The causal mask is turned around: query i sees the keys from i on"
    return None


def _given_mask(case: Case, r: Result) -> str | None:
    """Another mask that fits the failing call and, where masks look less alike, a longer one."""
    found = taken_in(case, r.x)
    if found is None or _same(found, r.x.visible):
        return None
    fits = [_other_masks(found, r.x)]
    p = case.problem
    if case.captured is None and not p.seqlens_k and p.mask and p.len_k + MORE <= MAX_KEYS:
        # One more key is hidden, so that a mask that hid none does not look like no mask.
        mask = replace(p.mask, amount=p.mask.amount + 1)
        other, x = another(case, replace(p, len_k=p.len_k + MORE, mask=mask))
        longer = taken_in(other, x)
        if longer is not None:
            fits.append(_other_masks(longer, x))
    for text in fits[0]:
        if all(text in each for each in fits) and any(each[text] for each in fits):
            return text
    return None


MORE = 3
"""Keys by which the second call is longer."""


def _other_masks(found: tuple[Bools, Bools], x: Inputs) -> dict[str, bool]:
    """What the keys that were taken in fit, the one that says most first; and whether a row that
    takes in keys shows it, as rows without any fit everything.
    """
    visible = x.visible
    fits: dict[str, bool] = {}

    def fit(text: str, own: tuple[Bools, Bools], expected: Bools, right: Bools) -> None:
        if _same(own, expected):
            fits[text] = bool(((expected != right).any(-1) & expected.any(-1)).any())

    def of_first(axis: int) -> Bools:
        return np.broadcast_to(visible.take([0], axis), visible.shape)

    some = visible.any(-1, keepdims=True)
    if (~visible & some).any():
        every = np.ones_like(visible)
        fit("attn_mask is ignored: hidden keys are taken in", found, every, visible)
    fit("Every head uses the mask of head 0", found, of_first(1), visible)
    fit("Every batch element uses the mask of batch 0", found, of_first(0), visible)
    turned = "attn_mask is turned around: it is the hidden keys that are taken in"
    fit(turned, found, ~visible, visible)
    for axis, name in ((1, "head"), (0, "batch")):
        seen, known, theirs = (np.moveaxis(each, axis, 0) for each in (*found, visible))
        count = range(len(theirs))
        own = [(seen[i], known[i]) for i in count]
        # Where one has a mask that is nobody's, something else is wrong.
        if not all(any(_same(own[i], theirs[j]) for j in count) for i in count):
            continue
        for i, j in itertools.permutations(count, 2):
            text = f"{name.capitalize()} {i} uses the mask of {name} {j}"
            fit(text, own[i], theirs[j], theirs[i])
    return fits


def _same(found: tuple[Bools, Bools], expected: Bools) -> bool:
    """Whether the keys taken in are those expected.

    A row that should see no key may give anything; one that should see a key and is NaN differs
    from it.
    """
    seen, known = found
    empty = ~expected.any(-1)
    return bool((known | empty).all() and ((seen == expected).all(-1) | empty).all())


# -- roundings ----------------------------------------------------------------------------


def _relative(r: Result, row: Row) -> float:
    """The largest error of a row over the sum of p |v|."""
    size = np.maximum(r.at.abs_out[row], 1e-300)
    return float((np.abs(r.out[row] - r.value.out[row]) / size).max())


def _coarse(r: Result) -> str | None:
    row = r.worst_row(r.wrong_rows)
    if row is None or not np.isfinite(r.out[r.wrong_rows]).all():
        return None
    relative, ratio = _relative(r, row), float(r.ratio[row].max())
    if not 0 < relative <= ROUNDING:
        return None
    return (
        f"Output is off by {short(relative)} relative to the sum of p|v|, {phrases.times(ratio)}: "
        f"an intermediate is too coarse (about {phrases.power(relative)}; one rounding is "
        "2^-24 in float32, 2^-11 in float16, 2^-8 in bfloat16)"
    )


def _coarse_lse(r: Result) -> str | None:
    bad = r.ratio_lse > 1
    if r.lse is None or not np.isfinite(r.lse[bad]).all():
        return None
    error = float(np.abs(r.lse - r.value.lse)[bad].max())
    if not 0 < error <= ROUNDING:
        return None
    return (
        f"lse is off by {short(error)}, {phrases.times(float(r.ratio_lse.max()))}: an "
        f"intermediate is too coarse (about {phrases.power(error)}; one rounding is "
        "2^-24 in float32, 2^-11 in float16, 2^-8 in bfloat16)"
    )


def _fallback(law: Law, check: Check) -> str:
    """The law and the numbers."""
    w = check.worst
    if w is None:
        return check.message or f"{law.name} does not hold"
    where = phrases.element(w.output, w.index)
    got, expected = phrases.apart(w.got, w.expected)
    told = f"{where} is {got}"
    if law.runs:
        told += f" from {law.runs[0]} and, from {law.runs[1]}, expected to be {expected}"
    elif not math.isnan(w.expected):
        told += f" instead of {expected}"
    if law.name in ("agreement", "finite", "gradients"):
        return f"{told}, {phrases.times(check.ratio)}"
    return f"{told}, although {law.statement}"
