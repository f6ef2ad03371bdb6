"""flashcheck gate: the entry point for CI."""

from __future__ import annotations

import sys
from typing import Any

import click

from flashcheck.cli.options import Fails, dtypes_of, settings_of, strings, typed


@click.command()
@click.argument("targets", metavar="TARGET...", nargs=-1)
@click.option("--dtype", multiple=True, metavar="D[,D]", help="dtypes [default: all it takes]")
@click.option("--device", metavar="cpu|cuda[:i]", help="where to run [default: cpu]")
@click.option("--budget", metavar="smoke|pr|nightly|N|Ns", help="for each TARGET [default: pr]")
@click.option("--seed", type=click.IntRange(0), help="repeat a run [default: a fresh one, printed]")
@click.option(
    "--report", multiple=True, metavar="FORMAT=PATH", help="json, md or junit; repeatable"
)
@click.option("--examples", metavar="DIR", help="where failing inputs go [.flashcheck/examples]")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), help="seconds a call may take [60]"
)
@click.option("--max-vacuous", type=float, help="share of checks that may prove nothing [0.1]")
@click.option(
    "--min-power",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="P",
    help="lower limit of the share of injected faults that the run has to catch [none]",
)
@click.option("--no-isolate", is_flag=True, help="run the kernel in this process, for debuggers")
@click.option("-q", "--quiet", is_flag=True, help="failures and the verdict only")
@click.option("--no-color", is_flag=True, help="plain text (NO_COLOR is respected too)")
def gate(targets: tuple[str, ...], **flags: Any) -> None:
    """Check kernels; the entry point for CI.

    TARGET is a registered name (numpy_online, torch_sdpa[math]), package.module:attribute or
    path/to/file.py:attribute: a callable with the signature of torch's
    scaled_dot_product_attention, or a flashcheck.Kernel.

    \b
    Exit codes: 0 every check is within its bound; 1 a kernel is wrong; 2 could not run;
    3 ran, but proves nothing; 130 interrupted.
    """  # noqa: D301 (click reads the backspace)
    settings = settings_of(flags)
    names = list(targets) or settings.get("kernels", [])
    if not names:
        raise Fails("no TARGET: name a kernel, such as path/to/file.py:attention, or set "
                     "kernels in [tool.flashcheck] of pyproject.toml")  # fmt: skip
    from flashcheck.budget import Budget
    from flashcheck.events import Event, RunFinished
    from flashcheck.gating import EXAMPLES, MAX_VACUOUS
    from flashcheck.gating import gate as run
    from flashcheck.regressions import FOLDER
    from flashcheck.reporting import Recorder, parse_report, write_reports
    from flashcheck.reporting.github import GitHub, active
    from flashcheck.reporting.terminal import Terminal

    try:
        reports = [parse_report(text) for text in strings(settings.get("report"))]
    except ValueError as error:
        raise Fails(f"--report: {error}") from None
    try:
        budget = Budget.parse(str(settings.get("budget", "pr")))
    except ValueError as error:
        raise Fails(f"--budget: {error}") from None
    for _, path in reports:
        path.parent.mkdir(parents=True, exist_ok=True)
    recorder = Recorder()
    terminal = Terminal(recorder, quiet=flags["quiet"], no_color=flags["no_color"],
                        reports=[path for _, path in reports])  # fmt: skip
    github = GitHub(recorder) if active() else None

    def listen(event: Event) -> None:
        recorder(event)
        if isinstance(event, RunFinished):
            write_reports(recorder.summary(), reports)
        terminal(event)
        if github is not None:
            github(event)

    try:
        result = run(
            names,
            dtypes=dtypes_of(strings(settings.get("dtype"))),
            device=settings.get("device"),
            budget=budget.name,
            seed=settings.get("seed"),
            examples=settings.get("examples") or EXAMPLES,
            regressions=settings.get("regressions") or FOLDER,
            isolate=not flags["no_isolate"],
            timeout=settings.get("timeout") or 60.0,
            max_vacuous=settings.get("max_vacuous", MAX_VACUOUS),
            power=True,
            min_power=settings.get("min_power"),
            command=typed(),
            listeners=(listen,),
        )
    except OSError as error:
        raise Fails(str(error)) from None
    finally:
        terminal.close()
    sys.exit(result.exit_code)
