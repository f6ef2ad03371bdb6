"""The kill matrix as text: survivors first, then the limit, then fault by fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from flashcheck import environment, fault
from flashcheck.power.matrix import Tally, tally
from flashcheck.power.trial import BUDGET, Trial

Row = tuple[str, ...]


def survivors(trials: Iterable[Trial]) -> list[str]:
    """One line for each fault, kernel and dtype in which a trial did not kill."""
    alive: dict[tuple[str, str, str], list[Trial]] = {}
    for t in trials:
        alive.setdefault((t.fault, t.kernel, t.dtype), []).append(t)
    return [
        f"{name} in {kernel}, {dtype}: survived {sum(not t.killed for t in cell)} of {len(cell)} "
        f"searches of {max(t.checks for t in cell if not t.killed)} checks"
        for (name, kernel, dtype), cell in sorted(alive.items())
        if name and not all(t.killed for t in cell)
    ]


def rejected(trials: Iterable[Trial]) -> list[str]:
    """One line for each search that failed a kernel without a fault."""
    return [
        f"{t.kernel} as it is, {t.dtype}: failed by {t.property} (seed {t.seed})"
        for t in trials
        if not t.fault and t.killed
    ]


def headline(trials: Iterable[Trial]) -> str:
    """Killed of all, the limit, the problems that it took; clean kernels beside them."""
    every = list(trials)
    broken, clean = tally(t for t in every if t.fault), [t for t in every if not t.fault]
    names = len({t.fault for t in every if t.fault})
    text = f"{names} fault{'s' if names != 1 else ''}: {_killed(broken)}"
    if clean:
        checks = sum(t.checks for t in clean)
        text += f"; clean kernels: {sum(t.killed for t in clean)} failed in {checks:,} checks"
    return text


def _killed(t: Tally) -> str:
    return (
        f"{t.killed:,} of {t.trials:,} killed, lower limit {t.limit:.3f}, "
        f"median {t.percentile(0.5):g} problems, p95 {t.percentile(0.95):g}"
    )


def rows(trials: Iterable[Trial], key: Callable[[Trial], str]) -> list[Row]:
    """A table of tallies: killed of trials, median and p95 problems, which properties."""
    table: list[Row] = []
    for name, group in groupby(sorted(trials, key=key), key):
        t = tally(group)
        by = ", ".join(f"{law} {100 * n // t.killed} %" for law, n in t.properties[:3])
        table.append(
            (name, f"{t.killed} / {t.trials}", f"{t.percentile(0.5):g}",
             f"{t.percentile(0.95):g}", by)
        )  # fmt: skip
    return table


HEAD = ("killed", "median", "p95", "killed by")


def markdown(trials: Sequence[Trial], failures: Sequence[str], command: str) -> str:
    """The report; `command` is what made it, `failures` what could not run."""
    broken = [t for t in trials if t.fault]
    kinds = {name: fault.read(name).kind for name in {t.fault for t in broken}}
    alive = survivors(trials)
    summary = (
        f"{headline(trials)}. A trial is one search with a seed of its own, of at most the "
        f"default budget ({BUDGET:,} checks for all dtypes of a kernel), until the first check "
        "that fails. The limit holds for the gate's own randomness on these faults, with 95 % "
        "confidence; it says nothing about faults that nobody wrote."
    )
    parts = [
        "# Power: would the gate have caught it?",
        f"    {command}",
        summary,
        "## Survivors\n\n" + ("\n".join(f"- {line}" for line in alive) or "None."),
    ]
    if wrong := [*rejected(trials), *failures]:
        parts.append("## Not as it should be\n\n" + "\n".join(f"- {line}" for line in wrong))
    parts += [
        "## Kernels and dtypes",
        _table(("kernel, dtype", *HEAD), rows(broken, lambda t: f"`{t.kernel}`, {t.dtype}")),
        "## Kinds",
        _table(("kind", *HEAD), rows(broken, lambda t: _kind(kinds[t.fault]))),
        "## Faults",
        _table(("fault", *HEAD), rows(broken, lambda t: f"{kinds[t.fault]} `{t.fault}`")),
        "## Environment",
        "\n".join(f"    {line}" for line in environment.lines(environment.collect(None))),
    ]
    return "\n\n".join(parts) + "\n"


def _kind(letter: str) -> str:
    return f"{letter} {fault.KINDS[letter]}"


def _table(head: Row, body: Iterable[Row]) -> str:
    lines = (head, ("---", *("---:",) * 3, "---"), *body)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
