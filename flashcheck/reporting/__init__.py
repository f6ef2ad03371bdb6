"""Reports: listeners that turn the events of a run into text, and writers of files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from flashcheck.reporting import json_report, junit, markdown
from flashcheck.reporting.recorder import Recorder as Recorder
from flashcheck.reporting.summary import RunSummary as RunSummary

WRITERS: dict[str, Callable[[RunSummary, Path], None]] = {
    "json": json_report.write,
    "md": markdown.write,
    "junit": junit.write,
    "dir": markdown.write_per_dtype,
}


def parse_report(text: str) -> tuple[str, Path]:
    """The FORMAT and PATH of `--report FORMAT=PATH`. Raises ValueError."""
    name, equals, path = text.partition("=")
    formats = ", ".join(WRITERS)
    if not equals or not path:
        raise ValueError(f"{text!r} is not FORMAT=PATH; FORMAT is one of {formats}")
    if name not in WRITERS:
        raise ValueError(f"there is no report format {name!r}; there are {formats}")
    return name, Path(path)


def write_reports(summary: RunSummary, reports: list[tuple[str, Path]]) -> None:
    """Write each report that `parse_report` named. Raises OSError."""
    for name, path in reports:
        WRITERS[name](summary, path)
