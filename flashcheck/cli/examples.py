"""flashcheck replay, show, promote: what is done with saved examples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from flashcheck.cli.options import Fails, examples_folder, settings_of


@click.command()
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

    folder = examples_folder(examples)
    try:
        paths = [p for item in what or (None,) for p in store.find(item, folder)]
    except store.ExampleError as error:
        raise Fails(str(error)) from None
    results = again.replay(
        paths, kernel=kernel, device=device, timeout=timeout, isolate=not no_isolate
    )
    click.echo(again.render(results))
    sys.exit(again.exit_code(results))


@click.command()
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
        raise Fails("--kernel goes with --script; flashcheck replay runs another kernel")
    try:
        found = [store.load(path) for path in store.find(example, examples_folder(examples))]
    except store.ExampleError as error:
        raise Fails(str(error)) from None
    if script is None:
        for one in found:
            click.echo(one.render())
        return
    if len(found) != 1:
        raise Fails(f"--script is of one example, and {example} holds {len(found)}: name one")
    _write_script(found[0], script, kernel)


@click.command()
@click.argument("example", metavar="ID|PATH")
@click.option("--to", metavar="DIR", help="where it is kept [properties/regressions]")
@click.option("--examples", metavar="DIR", help="where examples are [.flashcheck/examples]")
def promote(example: str, to: str | None, examples: str | None) -> None:
    """Keep a saved example as a regression, to be committed.

    The gate checks regressions first, on every kernel that takes them.
    """
    from flashcheck import examples as store
    from flashcheck import regressions

    home = Path(settings_of({}).get("regressions") or regressions.FOLDER)
    folder = home if to is None else Path(to)
    try:
        written = [
            file
            for path in store.find(example, examples_folder(examples))
            for file in regressions.promote(path, folder)
        ]
    except (store.ExampleError, OSError) as error:
        raise Fails(str(error)) from None
    for file in written:
        click.echo(f"wrote {file}")
    if folder.resolve() == home.resolve():
        click.echo("From now on the gate checks it first. Commit it with the fix.")
    else:
        click.echo(
            f"The gate looks into {home}: set regressions = {str(folder)!r} in [tool.flashcheck] "
            "to have it checked first."
        )


def _write_script(example: Any, path: str, kernel: str | None) -> None:
    """Write the script of an example to `path`, or print it for "-"."""
    from flashcheck.bits import pack_named
    from flashcheck.kernel import TargetError
    from flashcheck.records import write_whole
    from flashcheck.script import script
    from flashcheck.statements import ScriptError
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
        raise Fails(str(error)) from None
    click.echo(f"wrote {file}" + (f" and {beside}" if made.tensors else ""))
