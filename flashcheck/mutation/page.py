"""The outcomes as text: survivors first, each with its evidence, then lines without a guard."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from flashcheck import environment
from flashcheck.mutation.campaign import Campaign
from flashcheck.mutation.outcome import Outcome
from flashcheck.power.matrix import lower_limit

MISSED = "Missed: they leave the bound on a problem that the search did not try"
REFUSING = "Refuse some of what the kernel takes: legal, so that no check fails it"
WITHIN = "Survived within the bound: results differ, and no check can tell"
ALIKE = "Survived without a difference: equivalent, or no input that was tried shows them"
KINDS = (MISSED, REFUSING, WITHIN, ALIKE)


def kind(found: Outcome) -> str:
    """Which of KINDS a survivor is."""
    d = found.difference
    if d.ratio > 1:
        return MISSED
    if d.refused:
        return REFUSING
    return WITHIN if d.differing else ALIKE


def survivors(found: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """By kind, those whose error is largest first."""
    alive = [o for o in found if o.fate == "survived"]
    alive.sort(key=lambda o: (KINDS.index(kind(o)), -o.difference.ratio, o.mutant.line))
    return {k: list(group) for k, group in groupby(alive, kind)}


def evidence(found: Outcome) -> str:
    """What is known of a survivor's difference, in a sentence."""
    d = found.difference
    if not d.differing:
        return f"no difference on {d.compared} problems"
    if d.refused and d.ratio <= 1:
        return f"refuses {d.refused} of {d.compared} problems"
    text = f"differs on {d.differing} of {d.compared} problems"
    if d.ratio == float("inf"):
        return f"{text}, where it fails outright: {d.on}"
    if d.ratio > 1:
        return f"{text}, by up to {d.ratio:.3g} times the bound: {d.on}"
    return f"{text}, error {d.ratio:.2g} of the bound where it grows most (from {d.clean:.2g})"


def headline(found: Sequence[Outcome]) -> str:
    """The share killed, its limit, and what is counted apart."""
    alive = survivors(found)
    killed = [o for o in found if o.fate == "killed"]
    missed, refusing, within, alike = (len(alive.get(k, ())) for k in KINDS)
    invalid = sum(o.fate == "invalid" for o in found)
    count = len(killed) + missed + within
    text = f"{len(killed):,} of {count:,} mutants killed"
    if count:
        text += f", lower limit {lower_limit(len(killed), count):.3f}"
    parts = [
        f"{n} {what}"
        for n, what in (
            (missed, "missed"),
            (within, "within the bound"),
            (alike, "without a difference, not counted"),
            (refusing, "refuse more, not counted"),
            (invalid, "cannot be loaded, not counted"),
        )
        if n
    ]
    return "; ".join([text, *parts])


def killers(found: Iterable[Outcome]) -> str:
    """By what mutants were killed."""
    names = Counter(
        {"CRASH": "an exception or a crash", "TIMEOUT": "a hang", "REFUSED": "refusing everything"}
        .get(o.verdict, o.property)
        for o in found
        if o.fate == "killed"
    )  # fmt: skip
    return ", ".join(f"{name} {n}" for name, n in names.most_common())


def unguarded(found: Iterable[Outcome]) -> list[tuple[int, int]]:
    """(line, survivors) of lines of which no mutant was killed, though results differ.

    A mutant without a difference, or one that refuses more, tells nothing about the line.
    """
    found = list(found)
    killed = {o.mutant.line for o in found if o.fate == "killed"}
    alive = survivors(found)
    differ = Counter(o.mutant.line for k in (MISSED, WITHIN) for o in alive.get(k, ()))
    return [(line, count) for line, count in sorted(differ.items()) if line not in killed]


def code(found: Sequence[Outcome]) -> int:
    """1 where a mutant leaves the bound and survived, else 0."""
    return int(MISSED in survivors(found))


def opening(c: Campaign, budget: str) -> str:
    """What is run, in lines."""
    p = c.plan
    sample = ""
    if len(c.tried) < c.found:
        sample = f", of which a sample of {len(c.tried)} is tried (--max-mutants)"
    file = _short(p.file)
    if not c.reproducible:
        sample += "\nThe kernel as it is gives other bits in another process: so do survivors"
    return (
        f"{file}: {c.found} mutants of the lines that {p.compared} problems run{sample}\n"
        f"{', '.join(p.spaces)}; up to {p.checks} checks of each dtype (budget {budget}), "
        f"seed {p.seed}"
    )


def lines(c: Campaign, found: Sequence[Outcome]) -> list[str]:
    """The terminal's text after the run, without the headline."""
    text: list[str] = []
    for title, group in survivors(found).items():
        text += ["", f"{title} ({len(group)})"]
        for o in group:
            m = o.mutant
            text += [
                f"  {_short(c.plan.file)}:{m.line}  {m.operator}",
                f"    - {m.before}",
                f"    + {m.after}",
                f"    {evidence(o)}",
            ]
    if rest := _unguarded(c, found):
        text += ["", "Lines that no check guards", *(f"  {line}" for line in rest)]
    text += ["", f"Killed by: {killers(found)}"] if killers(found) else [""]
    return text


def _unguarded(c: Campaign, found: Sequence[Outcome]) -> list[str]:
    file = _short(c.plan.file)
    rest = [
        f"{file}:{line}  {c.source.lines[line - 1].strip()}  "
        f"({count} mutant{'s that differ' if count > 1 else ' that differs'}, none killed)"
        for line, count in unguarded(found)
    ]
    if c.missed:
        rest.append(f"{file}: no problem runs line {_ranges(c.missed)}")
    return rest


def markdown(c: Campaign, found: Sequence[Outcome], budget: str, command: str) -> str:
    """The report; `command` is what made it."""
    limit = (
        "The limit is one-sided, with 95 % confidence, for mutants like these; it says nothing "
        "about bugs of other kinds."
    )
    parts = [
        f"# Mutants of `{c.plan.target.name}`",
        f"    {command}",
        opening(c, budget).replace("\n", ". ") + ".",
        f"{headline(found)}. {limit}",
    ]
    alive = survivors(found)
    for title in KINDS:
        parts.append(f"## {title}")
        parts += [_entry(c, o) for o in alive.get(title, ())] or ["None."]
    rest = _unguarded(c, found)
    parts.append("## Lines that no check guards")
    parts.append("\n".join(f"    {line}" for line in rest) or "None.")
    parts.append(f"## Killed\n\n{killers(found) or 'None'}.")
    parts.append("## Environment")
    parts.append("\n".join(f"    {x}" for x in environment.lines(environment.collect(None))))
    return "\n\n".join(parts) + "\n"


def _entry(c: Campaign, o: Outcome) -> str:
    m = o.mutant
    head = f"`{_short(c.plan.file)}:{m.line}` {m.operator}: {evidence(o)}"
    return f"{head}\n\n```diff\n- {m.before}\n+ {m.after}\n```"


def _short(path: str) -> str:
    relative = os.path.relpath(path)
    return relative if len(relative) < len(path) else path


def _ranges(numbers: Sequence[int]) -> str:
    """1, 2, 3, 7 as 1-3, 7."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs)
