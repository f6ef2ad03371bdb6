"""The command line: flashcheck gate, replay, show, promote, power, claims, list, env."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import flashcheck
from flashcheck import config, threads
from flashcheck.formats import DTYPES

if TYPE_CHECKING:
    from flashcheck.power.trial import Trial

COULD_NOT_RUN = 2
INTERRUPTED = 130

KERNELS = ("numpy_online", "fp32_stats", "triton_flash")
"""The kernels that `power` breaks."""

# Imported before NumPy; said again here so that no one takes the import for unused.
threads.pin()


class _Fails(click.ClickException):
    """One line on stderr, exit code 2."""

    exit_code = COULD_NOT_RUN


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(flashcheck.__version__, prog_name="flashcheck")
def main() -> None:
    """The numerical correctness gate for attention kernels."""


@main.command()
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
    settings = _settings(flags)
    names = list(targets) or settings.get("kernels", [])
    if not names:
        raise _Fails("no TARGET: name a kernel, such as path/to/file.py:attention, or set "
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
        reports = [parse_report(text) for text in _list(settings.get("report"))]
    except ValueError as error:
        raise _Fails(f"--report: {error}") from None
    try:
        budget = Budget.parse(str(settings.get("budget", "pr")))
    except ValueError as error:
        raise _Fails(f"--budget: {error}") from None
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
            dtypes=_dtypes(_list(settings.get("dtype"))),
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
            command=" ".join(["flashcheck", *map(shlex.quote, sys.argv[1:])]),
            listeners=(listen,),
        )
    except OSError as error:
        raise _Fails(str(error)) from None
    finally:
        terminal.close()
    sys.exit(result.exit_code)


@main.command()
@click.argument("what", metavar="[ID|PATH|DIR]...", nargs=-1)
@click.option("--kernel", metavar="TARGET", help="run the same inputs on another kernel")
@click.option("--device", metavar="cpu|cuda[:i]", help="where to run [default: as recorded]")
@click.option("--examples", metavar="DIR", help="where examples are [.flashcheck/examples]")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    help="seconds a call may take [60]",
)
@click.option("--no-isolate", is_flag=True, help="run the kernel in this process, for debuggers")
def replay(
    what: tuple[str, ...],
    kernel: str | None,
    device: str | None,
    examples: str | None,
    timeout: float,
    no_isolate: bool,
) -> None:
    """Run saved examples again: FIXED, HOLDS, FAILED, CHANGED or ERROR each.

    HOLDS is a captured call that never failed. Without an argument, all of .flashcheck/examples.
    Exit codes: 0 all fixed, all hold or nothing to do; 1 any FAILED or CHANGED; 2 any ERROR.
    """
    from flashcheck import examples as store
    from flashcheck import replay as again

    folder = _folder(examples)
    try:
        paths = [p for item in what or (None,) for p in store.find(item, folder)]
    except store.ExampleError as error:
        raise _Fails(str(error)) from None
    results = again.replay(
        paths, kernel=kernel, device=device, timeout=timeout, isolate=not no_isolate
    )
    click.echo(again.render(results))
    sys.exit(again.exit_code(results))


@main.command()
@click.argument("example", metavar="ID|PATH")
@click.option("--examples", metavar="DIR", help="where examples are [.flashcheck/examples]")
@click.option(
    "--script",
    metavar="[PATH]",
    is_flag=False,
    flag_value="-",
    help="a file that reproduces it with torch and the kernel alone [default: print it]",
)
@click.option("--kernel", metavar="TARGET", help="of the script [default: as recorded]")
def show(example: str, examples: str | None, script: str | None, kernel: str | None) -> None:
    """Explain a saved example: the sentence, the numbers and the measured contrast."""
    from flashcheck import examples as store

    if kernel is not None and script is None:
        raise _Fails("--kernel goes with --script; flashcheck replay runs another kernel")
    try:
        found = [store.load(path) for path in store.find(example, _folder(examples))]
    except store.ExampleError as error:
        raise _Fails(str(error)) from None
    if script is None:
        for one in found:
            click.echo(one.render())
        return
    if len(found) != 1:
        raise _Fails(f"--script is of one example, and {example} holds {len(found)}: name one")
    _write_script(found[0], script, kernel)


@main.command()
@click.argument("example", metavar="ID|PATH")
@click.option("--to", metavar="DIR", help="where it is kept [properties/regressions]")
@click.option("--examples", metavar="DIR", help="where examples are [.flashcheck/examples]")
def promote(example: str, to: str | None, examples: str | None) -> None:
    """Keep a saved example as a regression, to be committed.

    The gate checks regressions first, on every kernel that takes them.
    """
    from flashcheck import examples as store
    from flashcheck import regressions

    home = Path(_settings({}).get("regressions") or regressions.FOLDER)
    folder = home if to is None else Path(to)
    try:
        written = [
            file
            for path in store.find(example, _folder(examples))
            for file in regressions.promote(path, folder)
        ]
    except (store.ExampleError, OSError) as error:
        raise _Fails(str(error)) from None
    for file in written:
        click.echo(f"wrote {file}")
    if folder.resolve() == home.resolve():
        click.echo("From now on the gate checks it first. Commit it with the fix.")
    else:
        click.echo(
            f"The gate looks into {home}: set regressions = {str(folder)!r} in [tool.flashcheck] "
            "to have it checked first."
        )


@main.command()
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

    path = _markdown(report)
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
        command = " ".join(["flashcheck", *map(shlex.quote, sys.argv[1:])])
        try:
            page.write(found, command, path)
        except OSError as error:
            raise _Fails(f"--report: {error}") from None
    sys.exit(int(failed))


@main.command()
@click.argument("target", metavar="[TARGET]", required=False)
@click.option("--fault", multiple=True, metavar="F[,F]", help="faults [default: all]")
@click.option(
    "--kernel",
    multiple=True,
    metavar="K[,K]",
    help="kernels to break [default: numpy_online, fp32_stats, triton_flash]",
)
@click.option(
    "--dtype",
    multiple=True,
    metavar="D[,D]",
    help="dtypes [default: all with a witness, or that TARGET takes]",
)
@click.option("--device", metavar="cpu|cuda[:i]", help="where to run [default: cpu]")
@click.option("--seeds", type=click.IntRange(1), default=3, help="searches of each fault [3]")
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
    only = ("fault", "kernel", "seeds", "clean") if target else ("budget", "max_mutants", "source")
    for name in only:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            goes = "without TARGET: it is of the faults" if target else "with TARGET"
            raise _Fails(f"--{name.replace('_', '-')} goes {goes}")
    if target:
        _mutate(target, flags)
    from flashcheck import fault
    from flashcheck.power import matrix, page
    from flashcheck.power.witness import chosen

    path = _markdown(flags["report"])
    names, kernels = _split(flags["fault"]), _split(flags["kernel"]) or list(KERNELS)
    if unknown := sorted({*names} - {*fault.names()}):
        raise _Fails(f"--fault: there is no {', '.join(unknown)}; see flashcheck list faults")
    wanted = _dtypes(_list(flags["dtype"]))
    dtypes: dict[tuple[str, str], list[str]] = {}
    for name, kernel, dtype in (w.key for w in chosen(kernels, wanted, names or None)):
        dtypes.setdefault((kernel, name), []).append(dtype)
    if not dtypes:
        raise _Fails("no fault has a witness there: nothing to run")
    cells = [matrix.Cell(kernel, name, tuple(ds)) for (kernel, name), ds in dtypes.items()]
    if flags["clean"]:
        cells += [matrix.Cell(k, "", tuple(wanted) if wanted else None) for k in kernels]
    seeds = range(flags["seed"], flags["seed"] + flags["seeds"])
    found: list[Trial] = []
    failed: list[str] = []
    for done in matrix.run(
        cells, seeds, device=flags["device"], jobs=flags["jobs"] or os.cpu_count() or 1
    ):
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
        command = " ".join(["flashcheck", *map(shlex.quote, sys.argv[1:])])
        try:
            page.write(page.markdown(found, failed, command), path)
        except OSError as error:
            raise _Fails(f"--report: {error}") from None
    sys.exit(code)


@main.command("list")
@click.argument(
    "what", type=click.Choice(["kernels", "properties", "faults", "dtypes", "families"])
)
def list_(what: str) -> None:
    """List the registered kernels, the properties, the faults, the dtypes or the input families."""
    if what == "kernels":
        from flashcheck.loading import registered

        lines = list(registered())
    elif what == "properties":
        from flashcheck.law import laws

        lines = [f"{law.name:<22} {law.statement}" for law in laws()]
    elif what == "faults":
        from flashcheck import fault

        pages = [fault.read(name) for name in fault.names()]
        lines = [f"{page.kind}  {page.name:<34} {page.title}" for page in pages]
    elif what == "dtypes":
        lines = list(DTYPES)
    else:
        from flashcheck.strategies import SCORES, VALUES

        lines = [f"scores  {name}" for name in SCORES] + [f"values  {name}" for name in VALUES]
    click.echo("\n".join(lines))


@main.command()
@click.option("--device", metavar="cpu|cuda[:i]", help="also describe this device")
def env(device: str | None) -> None:
    """Versions, devices and numeric flags, as every report and example records them."""
    from flashcheck import environment

    click.echo("\n".join(environment.lines(environment.collect(device))))


def _mutate(target: str, flags: dict[str, Any]) -> None:
    """`power TARGET`: mutants of a user's kernel."""
    from concurrent.futures.process import BrokenProcessPool

    from flashcheck.budget import Budget
    from flashcheck.kernel import TargetError
    from flashcheck.mutation import page
    from flashcheck.mutation.campaign import campaign
    from flashcheck.mutation.outcome import Outcome
    from flashcheck.power.page import write

    path = _markdown(flags["report"])
    try:
        budget = Budget.parse(flags["budget"] or "smoke")
    except ValueError as error:
        raise _Fails(f"--budget: {error}") from None
    if budget.checks is None:
        raise _Fails("--budget: a mutant's budget is a number of checks, or smoke or pr")
    found: list[Outcome] = []
    code = 0
    try:
        made = campaign(
            target,
            file=flags["source"],
            dtypes=_dtypes(_list(flags["dtype"])),
            device=flags["device"],
            checks=budget.checks,
            seed=flags["seed"],
            most=flags["max_mutants"],
        )
        click.echo(page.opening(made, budget.name))
        try:
            for outcome in made.run(flags["jobs"] or os.cpu_count() or 1):
                found.append(outcome)
                if sys.stderr.isatty():
                    click.echo(f"\r{len(found)} of {len(made.tried)} mutants", err=True, nl=False)
        except KeyboardInterrupt:
            code = INTERRUPTED
            click.echo(f"interrupted after {len(found)} of {len(made.tried)} mutants", err=True)
    except (TargetError, BrokenProcessPool) as error:
        raise _Fails(str(error)) from None
    code = code or page.code(found)
    click.echo("\n".join(page.lines(made, found)))
    click.echo(f"{page.headline(found)}  exit {code}")
    if path is not None:
        command = " ".join(["flashcheck", *map(shlex.quote, sys.argv[1:])])
        try:
            write(page.markdown(made, found, budget.name, command), path)
        except OSError as error:
            raise _Fails(f"--report: {error}") from None
    sys.exit(code)


def _settings(flags: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what the command line says on top."""
    try:
        settings = config.load(Path.cwd())
    except config.ConfigError as error:
        raise _Fails(str(error)) from None
    given = {k: v for k, v in flags.items() if v is not None and v != ()}
    return {**settings, **given}


def _write_script(example: Any, path: str, kernel: str | None) -> None:
    """Write the script of an example to `path`, or print it for "-"."""
    from flashcheck.bits import pack_named
    from flashcheck.kernel import TargetError
    from flashcheck.records import write_whole
    from flashcheck.script import ScriptError, script
    from flashcheck.worker import Worker

    file = Path(path)
    beside = file.with_suffix(".safetensors")
    try:
        with Worker(kernel or example.target) as worker:
            target = worker.start()
        made = script(example, target, None if path == "-" else beside.name)
        if path == "-":
            click.echo(made.text, nl=False)
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, made.text.encode())
        if made.tensors:
            write_whole(beside, pack_named(made.tensors))
    except (TargetError, ScriptError, OSError) as error:
        raise _Fails(str(error)) from None
    click.echo(f"wrote {file}" + (f" and {beside}" if made.tensors else ""))


def _markdown(report: str | None) -> Path | None:
    """The path of a --report that can only be Markdown."""
    from flashcheck.reporting import parse_report

    if report is None:
        return None
    try:
        kind, path = parse_report(report)
    except ValueError as error:
        raise _Fails(f"--report: {error}") from None
    if kind != "md":
        raise _Fails(f"--report: this is written as md, not {kind}: say md=PATH")
    return path


def _split(given: tuple[str, ...]) -> list[str]:
    return [name.strip() for item in given for name in item.split(",")]


def _list(value: Any) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def _dtypes(given: list[str]) -> list[str] | None:
    short = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    names = [short.get(d.strip(), d.strip()) for item in given for d in item.split(",")]
    for name in names:
        if name not in DTYPES:
            raise _Fails(f"--dtype: there is no dtype {name!r}; there are {', '.join(DTYPES)}")
    return list(dict.fromkeys(names)) or None


def _folder(given: str | None) -> Path:
    if given is not None:
        return Path(given)
    try:
        settings = config.load(Path.cwd())
    except config.ConfigError as error:
        raise _Fails(str(error)) from None
    return Path(settings.get("examples", ".flashcheck/examples"))


if __name__ == "__main__":
    main()
