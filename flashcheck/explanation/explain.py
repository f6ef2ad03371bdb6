"""Explain: a failure as a block of text for a person."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from flashcheck import defect, grad_out
from flashcheck.case import Case
from flashcheck.explanation.contrast import contrast
from flashcheck.explanation.diagnose import diagnose, unmeasured
from flashcheck.explanation.hints import hints
from flashcheck.explanation.models import likely
from flashcheck.explanation.phrases import element, short, times
from flashcheck.inputs import Inputs
from flashcheck.law import Law, Subject
from flashcheck.problem import Problem
from flashcheck.sentence import describe, describe_fill
from flashcheck.verdict import Check

T = TypeVar("T")

WIDTH = 100
RULE = 80


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about a failure.

    text      the whole block, as printed
    sentence  what is wrong with the result
    cause     what is wrong with the kernel, where a model of it gives the same result
    contrast  which neighbours of the problem pass or fail
    hints     what to declare if the kernel is meant to do this
    """

    text: str
    sentence: str
    cause: str
    contrast: tuple[str, ...]
    hints: tuple[str, ...]


def explain(
    subject: Subject,
    law: Law,
    problem: Problem,
    config: str | None,
    check: Check,
    *,
    example_id: str,
    command: str,
    seed: int | None = None,
    other_dtypes: Mapping[str, Subject] | None = None,
    captured: Inputs | None = None,
) -> Explanation:
    """Explain a failed `check` of `law` on `problem`; the kernel is run again to find out.

    Where tensors were `captured`, `problem` is their outline; no recipe makes neighbours of
    them, so that nothing is said that needs one.

    A part that raises is left out, and the text says so: that is a defect of flashcheck, which
    may not hide the failure.

    `command` repeats the whole run, `seed` is added to it where it names none; `other_dtypes`
    are subjects of the same kernel in its other dtypes.
    """
    case = subject.case(problem, config, captured)
    defects: list[str] = []

    def part(what: str, make: Callable[[], T], otherwise: T) -> T:
        try:
            return make()
        except Exception as error:
            defects.append(defect.told(what, error))
            return otherwise

    sentence = part(
        "say what is wrong with the result", lambda: diagnose(case, law, check),
        unmeasured(law, check),
    )  # fmt: skip
    lines: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    if captured is None:
        lines = part(
            "compare it with its neighbours",
            lambda: contrast(subject, law, problem, config, check, other_dtypes=other_dtypes),
            (),
        )
        declared = part("look for a declaration", lambda: hints(case, law, check), ())
    if seed is not None and "--seed" not in command:
        command += f" --seed {seed}"

    # The models of faults are about the forward pass.
    told = ""
    if not law.backward:
        told = part("look for the cause", lambda: _cause(case, law, check), "")
    sections = {
        "Likely cause": (told,) if told else (),
        "Smallest input found": input_lines(case, law),
        "Contrast": lines,
        "If this is intended": declared,
        "Not explained": tuple(defects),
    }
    block = [_rule(subject.target.name, problem.dtype, law.name, example_id)]
    block.append(counterexample(check, sentence, sections))
    block += ["", f"  flashcheck replay {example_id}", f"  flashcheck show {example_id}"]
    block.append(f"  whole run: {command}")
    return Explanation("\n".join(block), sentence, told, lines, declared)


def _cause(case: Case, law: Law, check: Check) -> str:
    cause = likely(case, law, check)
    return "" if cause is None else cause.sentence


def counterexample(check: Check, sentence: str, sections: Mapping[str, tuple[str, ...]]) -> str:
    """The sentence about a failed check, its numbers, then each section that has lines."""
    block = textwrap.wrap(sentence, WIDTH)
    numbers = _numbers(check)
    if numbers:
        block += ["", *numbers]
    block.append("")
    for title, lines in sections.items():
        if lines:
            block += [title, *_indented(lines)]
    return "\n".join(block)


def _rule(kernel: str, dtype: str, name: str, example_id: str) -> str:
    head, tail = f"-- {kernel}  {dtype}  {name} ", f" {example_id} --"
    return head + "-" * max(3, RULE - len(head) - len(tail)) + tail


def _numbers(check: Check) -> list[str]:
    """Got, expected, error and bound; where; how many."""
    w = check.worst
    if w is None:
        return []
    first = f"  got {_number(w.got)}"
    if not np.isnan(w.expected):
        first += f"   expected {_number(w.expected)}   error {short(w.error)}"
        first += f"   bound {short(w.bound)}"
        if np.isfinite(check.ratio):
            first += f"   ({times(check.ratio)})"
    c = check.counts
    nan, inf = c.get("nan", 0), c.get("inf", 0)
    found = [f"{n} {name}" for n, name in ((nan, "NaN"), (inf, "Inf")) if n]
    second = f"  at {element(w.output, w.index)}; "
    wrong, judged = c.get("wrong", 0), max(c.get("elements", 0), c.get("wrong", 0))
    second += f"{wrong} of {judged} elements wrong, "
    second += " and ".join(found) or "no NaN or Inf"
    if len(first) > WIDTH:
        return [*first.rsplit("   (", 1)[:1], f"  {times(check.ratio)}", second]
    return [first, second]


def _number(x: float) -> str:
    return f"{x:.6g}"


def input_lines(case: Case, law: Law | None = None) -> tuple[str, ...]:
    """The problem in words: shapes and options, q, k and v, and few scores."""
    p = case.problem
    lines = describe(p).split("; ")
    if case.captured is not None:
        lines = [lines[0].replace("(nothing hidden)", "(captured)"), "q, k and v are captured"]
    if case.config is not None:
        lines[0] += f", config {case.config}"
    if law is not None and law.backward:
        lines.append(f"grad_out = {describe_fill(grad_out.recipe(p.seed), 'q')}")
    if any(f.noise != "none" for f in (p.q, p.k, p.v)) or (
        p.mask is not None and p.mask.hides == "random"
    ):
        lines.append(f"seed {p.seed}")
    return (*lines, *_scores(case))


def _scores(case: Case) -> tuple[str, ...]:
    """The scores of up to four queries on up to four keys."""
    x = case.inputs
    b, h, _, lq, lk, _, _ = x.shape
    if not (0 < lk <= 4 and lq <= 4 and b * h == 1):
        return ()
    s, seen = case.attention().s[0, 0], x.visible[0, 0]
    rows = [
        ", ".join(short(float(v)) if shown else "hidden" for v, shown in zip(r, sees, strict=True))
        for r, sees in zip(s, seen, strict=True)
    ]
    if len(set(rows)) == 1:
        who = "query 0" if lq == 1 else "every query"
        return (f"scores of {who}: {rows[0]}",)
    return tuple(f"scores of query {i}: {row}" for i, row in enumerate(rows))


def _indented(lines: tuple[str, ...]) -> list[str]:
    return [
        part
        for line in lines
        for part in textwrap.wrap(
            re.sub(r"\s+", " ", line),
            WIDTH,
            initial_indent="  ",
            subsequent_indent="    ",
            break_on_hyphens=False,
        )
    ]
