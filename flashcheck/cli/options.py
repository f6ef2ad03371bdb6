"""Options: what those that several commands have mean, and how a command ends that cannot run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from flashcheck import config
from flashcheck.formats import EVERY

COULD_NOT_RUN = 2
INTERRUPTED = 130


class Fails(click.ClickException):
    """One line on stderr, exit code 2."""

    exit_code = COULD_NOT_RUN


def typed() -> str:
    """The command line, as reports have it."""
    return " ".join(["flashcheck", *map(shlex.quote, sys.argv[1:])])


def settings_of(flags: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what the command line says on top."""
    try:
        settings = config.load(Path.cwd())
    except config.ConfigError as error:
        raise Fails(str(error)) from None
    given = {k: v for k, v in flags.items() if v is not None and v != ()}
    return {**settings, **given}


def examples_folder(given: str | None) -> Path:
    """Where examples are: --examples, or what the configuration says."""
    return Path(settings_of({"examples": given}).get("examples", ".flashcheck/examples"))


def strings(value: Any) -> list[str]:
    """A setting that may be one string, several or none."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(item) for item in value]


def split(given: Iterable[str]) -> list[str]:
    """Names, given one by one or with commas."""
    return [name.strip() for item in given for name in item.split(",")]


def dtypes_of(given: Iterable[str]) -> list[str] | None:
    """The dtypes of --dtype; None for none given."""
    short = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    names = [short.get(name, name) for name in split(given)]
    for name in names:
        if name not in EVERY:
            raise Fails(f"--dtype: there is no dtype {name!r}; there are {', '.join(EVERY)}")
    return list(dict.fromkeys(names)) or None


def markdown_path(report: str | None) -> Path | None:
    """The path of a --report that can only be Markdown."""
    from flashcheck.reporting import parse_report

    if report is None:
        return None
    try:
        kind, path = parse_report(report)
    except ValueError as error:
        raise Fails(f"--report: {error}") from None
    if kind != "md":
        raise Fails(f"--report: this is written as md, not {kind}: say md=PATH")
    return path


def write_report(text: str, path: Path) -> None:
    """Write it, with its folder."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Fails(f"--report: {error}") from None
