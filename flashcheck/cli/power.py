"""flashcheck power: faults of the catalogue, or mutants of a TARGET."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from flashcheck.cli.options import (
    COULD_NOT_RUN,
    INTERRUPTED,
    Fails,
    dtypes_of,
    markdown_path,
    split,
    typed,
    write_report,
)

if TYPE_CHECKING:
    from flashcheck.power.trial import Trial

OF_FAULTS = ("fault", "kernel", "seeds", "clean")
OF_MUTANTS = ("budget", "max_mutants", "source")


@click.command()
@click.argument("target", metavar="[TARGET]", required=False)
@click.option("--fault", multiple=True, metavar="F[,F]", help="faults [default: all]")
@click.option(
    "--kernel",
    multiple=True,
    metavar="K[,K]",
    help="kernels to break [default: those that docs/power.md names]",
)
@click.option(
    "--dtype",
    multiple=True,
    metavar="D[,D]",
    help="dtypes [default: all with a witness, or that TARGET takes]",
)
@click.option("--device", metavar="cpu|cuda[:i]", help="where to run [default: cpu]")
@click.option(
    "--seeds",
    metavar="N[,K=N]",
    default="3",
    help="searches of each fault, and of those in kernel K [3]",
)
@click.option("--seed", type=click.IntRange(0), default=0, help="the first of them [0]")
@click.option("--jobs", type=click.IntRange(1), help="processes [default: one for each core]")
@click.option("--clean/--no-clean", default=True, help="search the kernels without a fault too")
@click.option("--budget", metavar="smoke|pr|N", help="checks for a mutant of TARGET [smoke]")
@click.option(
    "--max-mutants", type=click.IntRange(1), default=100, help="a sample of at most so many [100]"
)
@click.option("--source", metavar="FILE", help="mutate this file that TARGET runs, not its own")
@click.option("--report", metavar="md=PATH", help="write the result as Markdown too")
@click.pass_context
def power(context: click.Context, /, target: str | None, **flags: Any) -> None:
    """Run the gate on kernels that are broken on purpose: would it have caught it?

    Without TARGET, each fault of the catalogue, in each kernel and dtype where a witness shows
    that it matters, is searched by several seeds until the first check that fails. With TARGET,
    mutants of your own kernel are: its source with one edit each.

    \b
    Exit codes: 0 all killed (of TARGET: no survivor leaves the bound); 1 a fault survived, a
    clean kernel failed, or a mutant that leaves the bound was missed; 2 could not run.
    """  # noqa: D301 (click reads the backspace)
    for name in OF_FAULTS if target else OF_MUTANTS:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            goes = "without TARGET: it is of the faults" if target else "with TARGET"
            raise Fails(f"--{name.replace('_', '-')} goes {goes}")
    flags["jobs"] = flags["jobs"] or os.cpu_count() or 1
    if target:
        _mutants(target, flags)
    _faults(flags)


def _faults(flags: dict[str, Any]) -> NoReturn:
    """The matrix."""
    from flashcheck import fault
    from flashcheck.power import matrix, page
    from flashcheck.power.catalogue import KERNELS, cells

    path = markdown_path(flags["report"])
    names, kernels = split(flags["fault"]), split(flags["kernel"]) or list(KERNELS)
    if unknown := sorted({*names} - {*fault.names()}):
        raise Fails(f"--fault: there is no {', '.join(unknown)}; see flashcheck list faults")
    first = flags["seed"]
    seeds = {
        kernel: range(first, first + count)
        for kernel, count in _counts(flags["seeds"], kernels).items()
    }
    chosen = cells(seeds, names or None, dtypes_of(flags["dtype"]), clean=flags["clean"])
    if not any(cell.fault for cell in chosen):
        raise Fails("no fault has a witness there: nothing to run")
    found: list[Trial] = []
    failed: list[str] = []
    for done in matrix.run(chosen, device=flags["device"], jobs=flags["jobs"]):
        if isinstance(done, str):
            failed.append(done)
            continue
        found += done
        for line in (*page.survivors(done), *page.rejected(done)):
            click.echo(line)
    for line in failed:
        click.echo(f"could not run {line}", err=True)
    wrong = any(t.killed != bool(t.fault) for t in found)
    code = COULD_NOT_RUN if failed else int(wrong)
    click.echo(f"{page.headline(found)}  exit {code}")
    if path is not None:
        write_report(page.markdown(found, failed, typed()), path)
    sys.exit(code)


def _counts(given: str, kernels: Sequence[str]) -> dict[str, int]:
    """How many seeds for each kernel: "N", or "N,KERNEL=N" where one has its own number."""
    try:
        every, *own = given.split(",")
        counts = dict.fromkeys(kernels, int(every))
        for item in own:
            kernel, _, count = item.partition("=")
            if kernel not in counts:
                raise Fails(f"--seeds: {kernel!r} is none of the kernels {', '.join(kernels)}")
            counts[kernel] = int(count)
    except ValueError:
        raise Fails(f"--seeds: {given!r} is not N or N,KERNEL=N") from None
    if min(counts.values()) < 1:
        raise Fails("--seeds: at least 1")
    return counts


def _mutants(target: str, flags: dict[str, Any]) -> NoReturn:
    """Those of a user's kernel."""
    from concurrent.futures.process import BrokenProcessPool

    from flashcheck.budget import Budget
    from flashcheck.kernel import TargetError
    from flashcheck.mutation import page
    from flashcheck.mutation.campaign import campaign
    from flashcheck.mutation.outcome import Outcome

    path = markdown_path(flags["report"])
    try:
        budget = Budget.parse(flags["budget"] or "smoke")
    except ValueError as error:
        raise Fails(f"--budget: {error}") from None
    if budget.checks is None:
        raise Fails("--budget: a mutant's budget is a number of checks, or smoke or pr")
    found: list[Outcome] = []
    code = 0
    try:
        made = campaign(
            target,
            file=flags["source"],
            dtypes=dtypes_of(flags["dtype"]),
            device=flags["device"],
            checks=budget.checks,
            seed=flags["seed"],
            most=flags["max_mutants"],
        )
        click.echo(page.opening(made, budget.name))
        try:
            for outcome in made.run(flags["jobs"]):
                found.append(outcome)
                if sys.stderr.isatty():
                    click.echo(f"\r{len(found)} of {len(made.tried)} mutants", err=True, nl=False)
        except KeyboardInterrupt:
            code = INTERRUPTED
            click.echo(f"interrupted after {len(found)} of {len(made.tried)} mutants", err=True)
    except (TargetError, BrokenProcessPool) as error:
        raise Fails(str(error)) from None
    code = code or page.code(found)
    click.echo("\n".join(page.lines(made, found)))
    click.echo(f"{page.headline(found)}  exit {code}")
    if path is not None:
        write_report(page.markdown(made, found, budget.name, typed()), path)
    sys.exit(code)
