"""The claims as text: a table for each topic, on a terminal and in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby

from rich import box
from rich.table import Table

from flashcheck import environment
from flashcheck.claims.claim import Claim, Finding
from flashcheck.claims.derivation import NOT_MEASURED
from flashcheck.reporting.markdown import table
from flashcheck.reporting.wording import count

WIDTH = 160
"""Columns of a terminal that show a table well."""

COLUMNS = ("claim", "claimed", "measured", "verdict", "how")

_STYLES = {Finding.DOES_NOT_HOLD: "bold red", Finding.HOLDS_IF: "yellow"}


def cells(claim: Claim) -> tuple[str, ...]:
    """What a row says, in the order of COLUMNS."""
    return claim.statement, claim.claimed, claim.measured, claim.verdict, claim.method


def _prose(rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table of sentences: unpadded, for they are longer than a line."""
    lines = (COLUMNS, ("---",) * len(COLUMNS), *rows)
    escaped = ([cell.replace("|", r"\|") for cell in row] for row in lines)
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)


def terminal(topic: str, claims: Iterable[Claim]) -> Table:
    shown = Table(title=topic, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, ratio in zip(COLUMNS, (4, 2, 4, 3, 4), strict=True):
        shown.add_column(name, ratio=ratio)
    for claim in claims:
        shown.add_row(*cells(claim), style=_STYLES.get(claim.finding, ""))
    return shown


def headline(claims: Iterable[Claim]) -> str:
    """How many hold, hold with a condition, do not hold."""
    found = Counter(claim.finding for claim in claims)
    judged = found.total() - found[Finding.REPORTED]
    return (
        f"{count(judged, 'claim')}: {found[Finding.HOLDS]} hold, {found[Finding.HOLDS_IF]} hold "
        f"if their condition does, {found[Finding.DOES_NOT_HOLD]} do not hold; "
        f"{found[Finding.REPORTED]} measured without a claim"
    )


def markdown(claims: list[Claim], command: str) -> str:
    """The report; `command` is what made it."""
    parts = [
        "# What a derivation of online softmax claims, measured",
        f"    {command}",
        headline(claims) + ".",
        "**Not measured**\n\n" + "\n".join(f"- {sentence}" for sentence in NOT_MEASURED),
    ]
    for topic, group in groupby(claims, lambda claim: claim.topic):
        rows = list(group)
        parts += [f"## {topic}", _prose(map(cells, rows))]
        for claim in rows:
            if claim.evidence:
                parts += [
                    f"Behind “{claim.statement}”:",
                    table(claim.evidence[0], claim.evidence[1:]),
                ]
    lines = environment.lines(environment.collect(None))
    parts += ["## Environment", "\n".join(f"    {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"
