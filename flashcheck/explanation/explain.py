"""Explain: a failure as a block of text for a person."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from flashcheck import defect, grad_out
from flashcheck.case import Case
from flashcheck.explanation.contrast import contrast
from flashcheck.explanation.diagnose import diagnosed, unmeasured
from flashcheck.explanation.hints import hints
from flashcheck.explanation.models import Likely, likely
from flashcheck.explanation.phrases import element, short, times
from flashcheck.explanation.runs import which_is_wrong
from flashcheck.inputs import Inputs
from flashcheck.law import Law, Subject
from flashcheck.problem import Problem
from flashcheck.sentence import describe, describe_fill
from flashcheck.verdict import Check

T = TypeVar("T")

WIDTH = 100
RULE = 80

FEW = 8
"""Elements of a tensor that are all shown."""

AFRESH = "passes in a new process: the result depends on earlier calls or on memory"


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known about a failure.

    text      the whole block, as printed
    sentence  what is wrong with the result
    cause     what is wrong with the kernel, where a model of it gives the same result
    contrast  which neighbours of the problem pass or fail
    hints     what to declare if the kernel is meant to do this
    faults    the names, in kernels/faults, of what `cause` tells
    """

    text: str
    sentence: str
    cause: str
    contrast: tuple[str, ...]
    hints: tuple[str, ...]
    faults: tuple[str, ...] = ()


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
    after_others: bool = False,
    beside: Sequence[tuple[Law, Case]] = (),
    quick: bool = False,
) -> Explanation:
    """Explain a failed `check` of `law` on `problem`; the kernel is run again to find out.

    Where tensors were `captured`, `problem` is their outline; no recipe makes neighbours of
    them, so that nothing is said that needs one.

    A part that raises is left out, and the text says so: that is a defect of flashcheck, which
    may not hide the failure.

    after_others: whether the check passes in a process that was not called before. What models of
    faults and declarations explain is one call, so that they are not asked.

    beside: other failures of the kernel, which a declaration has to excuse too. quick: whether
    only to say what is wrong with the result, which takes a few runs of the kernel.

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

    sentence, shown = part(
        "say what is wrong with the result", lambda: diagnosed(case, law, check),
        (unmeasured(law, check), check),
    )  # fmt: skip
    blamed = part("say which run is wrong", lambda: which_is_wrong(case, law, shown), "")
    # The models of faults are about one call of the forward pass.
    cause: Likely | None = None
    if not (law.backward or after_others or quick):
        cause = part("look for the cause", lambda: likely(case, law, check), None)
    told = "" if cause is None else cause.sentence
    faults = () if cause is None else cause.faults
    lines: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    if after_others:
        # What neighbours give depends on what was called before, too.
        sentence = f"{sentence.rstrip('.')}, but not in a new process."
        lines = (AFRESH,)
    elif captured is None and not quick:
        lines = part(
            "compare it with its neighbours",
            lambda: contrast(subject, law, problem, config, check, other_dtypes=other_dtypes),
            (),
        )
        declared = part(
            "look for a declaration",
            lambda: hints(case, law, check, named=faults, beside=beside),
            (),
        )
    if seed is not None and "--seed" not in command:
        command += f" --seed {seed}"

    sections = {
        "Likely cause": (told,) if told else (),
        "Smallest input found": input_lines(case, law),
        "Contrast": lines,
        "If this is intended": declared,
        "Not explained": tuple(defects),
    }
    block = [_rule(subject.target.name, problem.dtype, law.name, example_id)]
    block.append(counterexample(shown, sentence, sections, law=law, blamed=blamed))
    alone = " (which passes, by itself)" if after_others else ""
    block += ["", f"  flashcheck replay {example_id}{alone}", f"  flashcheck show {example_id}"]
    block.append(f"  whole run: {command}")
    return Explanation("\n".join(block), sentence, told, lines, declared, faults)


def counterexample(
    check: Check,
    sentence: str,
    sections: Mapping[str, tuple[str, ...]],
    *,
    law: Law | None = None,
    blamed: str = "",
) -> str:
    """The sentence about a failed check, its numbers, then each section that has lines.

    law: what was checked, which may compare two runs; blamed: which of them is wrong.
    """
    block = textwrap.wrap(sentence, WIDTH)
    numbers = _numbers(check, law.runs if law is not None else ())
    if numbers:
        block += ["", *numbers, *([f"  {blamed}"] if blamed else [])]
    block.append("")
    for title, lines in sections.items():
        if lines:
            block += [title, *_indented(lines)]
    return "\n".join(block)


def of_a_kind(
    found: Explanation, earlier: str, subject: Subject, law: Law, example_id: str, count: int
) -> str:
    """A failure that has the likely cause of an `earlier` example, in few lines."""
    checks = "1 failing check has" if count == 1 else f"{count:,} failing checks have"
    said = f"{found.sentence} {checks} the likely cause of {earlier} too."
    head = _rule(subject.target.name, subject.space.dtype, law.name, example_id)
    return "\n".join([head, *textwrap.wrap(said, WIDTH), "", f"  flashcheck show {example_id}"])


def _rule(kernel: str, dtype: str, name: str, example_id: str) -> str:
    head, tail = f"-- {kernel}  {dtype}  {name} ", f" {example_id} --"
    return head + "-" * max(3, RULE - len(head) - len(tail)) + tail


def _numbers(check: Check, runs: tuple[str, str] | tuple[()] = ()) -> list[str]:
    """Got, expected, error and bound; where; how many. `runs` names what gave got and expected."""
    w = check.worst
    if w is None:
        return []
    by = tuple(f" from {run}" for run in runs) or ("", "")
    parts = [f"got {_number(w.got)}{by[0]}"]
    if not np.isnan(w.expected):
        parts += [f"expected {_number(w.expected)}{by[1]}", f"error {short(w.error)}"]
        parts += [f"bound {short(w.bound)}"]
        if np.isfinite(check.ratio):
            parts += [f"({times(check.ratio)})"]
    c = check.counts
    nan, inf = c.get("nan", 0), c.get("inf", 0)
    found = [f"{n} {name}" for n, name in ((nan, "NaN"), (inf, "Inf")) if n]
    second = f"  at {element(w.output, w.index)}; "
    wrong, judged = c.get("wrong", 0), max(c.get("elements", 0), c.get("wrong", 0))
    second += f"{wrong} of {judged} elements wrong, "
    second += " and ".join(found) or "no NaN or Inf"
    lines = ["  " + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 3 + len(part) <= WIDTH:
            lines[-1] += f"   {part}"
        else:
            lines.append(f"  {part}")
    return [*lines, second]


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
    return (*lines, *_values(case), *_scores(case))


def _values(case: Case) -> tuple[str, ...]:
    """What noise makes of q, k and v of few elements."""
    p, x = case.problem, case.inputs
    tensors = (("q", p.q, x.q), ("k", p.k, x.k), ("v", p.v, x.v))
    return tuple(
        f"{name} holds {', '.join(short(float(value)) for value in values.ravel())}"
        for name, fill, values in tensors
        if fill.noise != "none" and 0 < values.size <= FEW
    )


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
