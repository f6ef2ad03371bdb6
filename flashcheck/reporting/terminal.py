"""The terminal: what a run says to a person while it goes and when it ends."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from flashcheck import environment
from flashcheck.events import (
    Checked,
    Event,
    FailureFound,
    RunFinished,
    RunStarted,
    TargetFailed,
    TargetFinished,
    TargetStarted,
)
from flashcheck.reporting.recorder import Recorder, declared
from flashcheck.reporting.summary import DtypeSummary, RunSummary
from flashcheck.reporting.wording import (
    bits,
    count,
    duration,
    headline,
    power,
    ratio,
    shortfalls,
    tried,
    verdict_word,
)
from flashcheck.verdict import Verdict

WIDTH = 100
_STYLES = {"PASSED": "bold green", "PROVES NOTHING": "bold yellow"}
_FAILING = ("VIOLATION", "CRASH", "TIMEOUT", "NONDETERMINISTIC")


def make_console(*, no_color: bool = False, file: TextIO | None = None) -> Console:
    """At most 100 columns wide, and exactly that where the output is not a terminal.

    NO_COLOR is respected; text of kernels is never taken for markup.
    """
    console = Console(
        file=file or sys.stdout,
        no_color=True if no_color else None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    return console


class Terminal:
    """The listener; `recorder` must hear each event first.

    reports     paths to name in the last line; they are written before RunFinished is sent
    quiet       leaves out the header, the progress and the table; never a failure, what was
                not tested, or the verdict
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        console: Console | None = None,
        quiet: bool = False,
        no_color: bool = False,
        reports: Sequence[Path] = (),
    ) -> None:
        self.console = console or make_console(no_color=no_color)
        self._recorder = recorder
        self._quiet = quiet
        self._reports = tuple(reports)
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._checks = self._failed = 0
        self._regressions: set[str] = set()

    def __call__(self, event: Event) -> None:
        match event:
            case Checked():
                self._count(event)
            case RunStarted():
                self._header(event)
            case TargetStarted():
                self._start(event)
            case TargetFailed():
                self._could_not_run(event)
            case FailureFound():
                self._failure(event)
            case TargetFinished():
                self._finish(event)
            case RunFinished():
                self.close()
                self._end()

    def close(self) -> None:
        """Take the progress bar away; safe to call at any time."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = self._task = None

    # -- while it goes --------------------------------------------------------------------

    def _header(self, event: RunStarted) -> None:
        if self._quiet:
            return
        for line in environment.lines(event.environment):
            self._say(line, "  ")
        dtypes = ", ".join(event.dtypes) if event.dtypes else "all that the kernel takes"
        self._say(f"seed {event.seed}  budget {event.budget}  dtypes {dtypes}", "  ")
        self._say("")

    def _start(self, event: TargetStarted) -> None:
        self.close()
        self._checks = self._failed = 0
        self._regressions = set()
        name = event.target.name
        if not self._quiet:
            self._say(f"{name}  {', '.join(event.dtypes)}  on {event.device}", "  ")
            if promises := declared(event.target.kernel):
                self._say(f"  declared: {', '.join(promises)}", " " * 12)
        elif event.untested:
            self._say(name)
        for sentence in event.untested:
            self._say(f"  not tested: {sentence}", " " * 14, "yellow")
        if self.console.is_terminal and not self._quiet:
            self._progress = Progress(
                TextColumn("  {task.description}", markup=False),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
                transient=True,
                refresh_per_second=4,
            )
            self._task = self._progress.add_task(name, total=event.checks_planned)
            self._progress.start()

    def _count(self, event: Checked) -> None:
        if event.check.verdict is Verdict.UNSUPPORTED:  # it says that nothing was checked
            return
        self._checks += 1
        self._failed += event.check.failed
        if event.regression:
            self._regressions.add(event.regression)
        elif self._progress is not None and self._task is not None:  # the budget's own
            self._progress.advance(self._task)

    def _could_not_run(self, event: TargetFailed) -> None:
        self.close()
        self._say(f"{event.spec}: could not run", "  ", "bold red")
        for line in event.message.splitlines():
            self._say(f"  {line}", "  ")

    def _failure(self, event: FailureFound) -> None:
        check = event.check
        text = event.text or (
            f"{event.target}  {event.dtype}  {check.property}  {event.example_id}\n"
            f"{check.verdict}: {check.message}  (ratio {ratio(check.ratio)})\n"
            f"  {event.problem}\n  flashcheck replay {event.example_id}"
        )
        self._say("")
        self._verbatim(text.rstrip())
        self._say("")

    def _finish(self, event: TargetFinished) -> None:
        self.close()
        if self._quiet:
            return
        failed = f", {self._failed:,} failed" if self._failed else ""
        stopped = f" (stopped by {event.stopped_by})" if event.stopped_by else ""
        kept = self._regressions
        first = f", {count(len(kept), 'regression')} first" if kept else ""
        checks = f"{count(self._checks, 'check')}{failed}{first}"
        done = f"{checks} in {duration(event.seconds)}{stopped}"
        self._say(f"  {event.target}: {done}", "    ")
        sizes = next(t.sizes for t in self._recorder.summary().targets if t.name == event.target)
        if sizes is not None:
            self._say(f"    tried {tried(sizes)}", " " * 10)

    # -- the end --------------------------------------------------------------------------

    def _end(self) -> None:
        summary = self._recorder.summary()
        if summary.checks and not self._quiet:
            self._say("")
            self.console.print(table(summary))
        # What could not be run was said where it happened, and the last line says it again.
        lost = {error.spec for error in summary.errors}
        gaps = [gap for gap in shortfalls(summary) if gap[0] not in lost]
        if gaps:
            self._say("")
        for who, sentence in gaps:
            self._say(f"not tested: {who}: {sentence}", " " * 12, "yellow")
        for line in power(summary):
            self._say(f"power: {line}", " " * 7)
        self._say("")
        word = verdict_word(summary)
        parts = [word, headline(summary)]
        if self._reports:
            label = "report" if len(self._reports) == 1 else "reports"
            parts.append(f"{label}: {', '.join(map(str, self._reports))}")
        parts.append(f"exit {summary.exit_code}")
        line = "  ".join(parts)
        if summary.reason:
            line += f": {summary.reason}"
        self._say(line, "  ", _STYLES.get(word, "bold red"))

    def _say(self, line: str, indent: str = "", style: str = "") -> None:
        """A line, wrapped between words; a word longer than the screen is left whole."""
        wrapped = textwrap.wrap(
            line,
            self.console.width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for part in wrapped or [""]:
            self.console.print(Text(part, style), no_wrap=True, overflow="ignore", crop=False)

    def _verbatim(self, text: str) -> None:
        self.console.print(Text(text), no_wrap=True, overflow="ignore", crop=False)


NAME_WIDTH = 32


def table(summary: RunSummary) -> Table:
    """One row per kernel and dtype, at most 100 columns."""
    results = [(t, r) for t in summary.targets for r in t.results.values()]
    extra = [name for name in ("outside", "refused") if any(getattr(r, name) for _, r in results)]
    found = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    # A long name gives way: the numbers must not.
    longest = max((len(t.name) for t, _ in results), default=0)
    word = max((len(w) for _, r in results for w in _flag(r).split()), default=0)
    room = NAME_WIDTH - 10 * len(extra) - max(0, word - 4)
    found.add_column("kernel", no_wrap=True, overflow="ellipsis", max_width=min(longest, room))
    found.add_column("dtype", no_wrap=True)
    for name in ("checks", "pass", "fail", "vacuous", *extra, "worst ratio", "headroom"):
        found.add_column(name, justify="right", no_wrap=True)
    flags = [_flag(r) for _, r in results]
    if any(flags):
        found.add_column("", min_width=word)
    for (target, r), flag in zip(results, flags, strict=True):
        found.add_row(
            Text(target.name),
            r.dtype,
            *(f"{n:,}" for n in (r.checks, r.passed, r.failed, r.vacuous)),
            *(f"{getattr(r, name):,}" for name in extra),
            ratio(r.worst.ratio if r.worst else None),
            bits(r.headroom),
            *([Text(flag, "bold red")] if any(flags) else []),
        )
    return found


def _flag(result: DtypeSummary) -> str:
    """The failing verdicts other than VIOLATION by name: they call for another remedy."""
    kinds = [v for v in _FAILING if result.verdicts.get(v)]
    if not kinds:
        return ""
    return "FAIL" if kinds == ["VIOLATION"] else ", ".join(kinds)
