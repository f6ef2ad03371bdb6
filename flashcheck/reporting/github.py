"""GitHub Actions: annotations on the kernels' lines, and the step summary.

GitHub shows ten errors a step and drops a whole summary above 1 MiB without a word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from flashcheck.events import Event, RunFinished
from flashcheck.reporting import markdown
from flashcheck.reporting.recorder import Recorder
from flashcheck.reporting.summary import RunSummary
from flashcheck.reporting.wording import count, first_line, ratio, verdict_word

MAX_ANNOTATIONS = 9
MAX_SUMMARY_BYTES = 1_000_000
_CUT = "\n\n(The rest is left out: GitHub takes at most 1 MiB. See the run's own report.)\n"


def active(env: Mapping[str, str] | None = None) -> bool:
    return (os.environ if env is None else env).get("GITHUB_ACTIONS") == "true"


class GitHub:
    """The listener; `recorder` must hear each event first."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        env: Mapping[str, str] | None = None,
        stream: TextIO | None = None,
    ) -> None:
        self._recorder = recorder
        self._env = os.environ if env is None else env
        self._stream = sys.stdout if stream is None else stream

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RunFinished):
            return
        summary = self._recorder.summary()
        for line in commands(summary, below=self._below()):
            print(line, file=self._stream, flush=True)
        if path := self._env.get("GITHUB_STEP_SUMMARY"):
            append_summary(summary, Path(path))

    def _below(self) -> str:
        """The current folder as seen from the workspace: annotations are relative to that."""
        workspace = self._env.get("GITHUB_WORKSPACE")
        try:
            return Path.cwd().relative_to(workspace).as_posix() if workspace else "."
        except ValueError:
            return "."


def commands(summary: RunSummary, below: str = ".") -> list[str]:
    """Workflow commands: at most nine, and a tenth that counts the others."""
    found = []
    for target in summary.targets:
        for f in target.failures:
            title = f"{f.target} {f.dtype} {f.property}: {f.verdict}"
            body = (
                f"{f.message} (ratio {ratio(f.ratio)}, {count(f.count, 'failing check')})\n"
                f"{f.problem}\nflashcheck replay {f.example_id}"
            )
            found.append(_command(title, body, target.file, target.line, below))
    for error in summary.errors:
        found.append(_command(f"{error.spec}: could not run", error.message))
    if not found and summary.exit_code != 0:
        found.append(_command(f"flashcheck: {verdict_word(summary)}", first_line(summary.reason)))
    if len(found) > MAX_ANNOTATIONS:
        more = len(found) - MAX_ANNOTATIONS
        found[MAX_ANNOTATIONS:] = [_command("flashcheck", f"and {more} more; see the report")]
    return found


def append_summary(summary: RunSummary, path: Path) -> None:
    """Append the Markdown report, cut at a line so that the file stays below 1 MiB."""
    room = MAX_SUMMARY_BYTES - (path.stat().st_size if path.exists() else 0)
    text = trim(markdown.render(summary), room)
    if text:
        with path.open("a", encoding="utf-8") as file:
            file.write(text)


def trim(text: str, size: int) -> str:
    """At most `size` bytes of UTF-8, ending at a line, with an open code fence closed."""
    raw = text.encode()
    if len(raw) <= size:
        return text
    # Room for the closing fence, which may be longer than three backticks.
    keep = size - len(_CUT.encode()) - 80
    if keep <= 0:
        return ""
    cut = raw[:keep].decode(errors="ignore")
    cut = cut[: cut.rfind("\n") + 1]
    fence = ""
    for line in cut.splitlines():
        ticks = line[: len(line) - len(line.lstrip("`"))]
        if fence and line == fence:
            fence = ""
        elif not fence and len(ticks) >= 3:
            fence = ticks
    return cut + fence + _CUT


def _command(
    title: str, body: str, file: str | None = None, line: int | None = None, below: str = "."
) -> str:
    where = ""
    if file:
        place = file if below == "." else f"{below}/{file}"
        where = f"file={_escape(place, True)}," + (f"line={line}," if line else "")
    return f"::error {where}title={_escape(title, True)}::{_escape(body)}"


def _escape(text: str, attribute: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if attribute else text
