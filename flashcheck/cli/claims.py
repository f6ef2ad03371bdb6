"""flashcheck claims."""

from __future__ import annotations

import sys

import click

from flashcheck.cli.options import markdown_path, typed, write_report


@click.command()
@click.option("--report", metavar="md=PATH", help="write the tables as Markdown too")
@click.option("--no-color", is_flag=True, help="plain text (NO_COLOR is respected too)")
def claims(report: str | None, no_color: bool) -> None:
    """Measure what a derivation of online softmax claims in numbers; half a minute, no GPU.

    \b
    Exit codes: 0 every claim holds, some with the condition that is printed; 1 one does not;
    2 could not run.
    """  # noqa: D301 (click reads the backspace)
    import itertools

    from rich.console import Console

    from flashcheck.claims import NOT_MEASURED, Claim, Finding, measure, page

    path = markdown_path(report)
    console = Console(no_color=no_color, highlight=False)
    # Where nobody looks, in a log, columns are not squeezed.
    console.width = console.width if console.is_terminal else max(console.width, page.WIDTH)
    found: list[Claim] = []
    for topic, group in itertools.groupby(measure(), lambda claim: claim.topic):
        rows = list(group)
        found += rows
        console.print(page.terminal(topic, rows))
    for sentence in NOT_MEASURED:
        console.print(f"not measured: {sentence}", style="yellow", markup=False)
    failed = any(claim.finding is Finding.DOES_NOT_HOLD for claim in found)
    console.print(f"{page.headline(found)}  exit {int(failed)}", style="bold", markup=False)
    if path is not None:
        write_report(page.markdown(found, typed()), path)
    sys.exit(int(failed))
