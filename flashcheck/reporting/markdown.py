"""Markdown: one report of a run, or a folder with one page per dtype.

The verdict comes first, then what was not tested, then the numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from flashcheck import environment
from flashcheck.formats import FORMATS
from flashcheck.reporting import json_report
from flashcheck.reporting.summary import (
    BiasSummary,
    DtypeSummary,
    FailureSummary,
    GroupSummary,
    RunSummary,
    TargetSummary,
)
from flashcheck.reporting.wording import (
    bits,
    count,
    headline,
    number,
    power,
    ratio,
    signed,
    tried,
    untested,
    verdict_word,
)

_NOTES = (
    "ratio = error / bound: a check holds up to 1. headroom = -log2 of the worst ratio. "
    "Medians are of the checks against the oracle. ulp = |error| of the output in units in "
    "the last place, every problem weighing the same. bias = mean signed error in ulp over "
    "the checks that hold, ± its standard error; `*` marks one that is more than three "
    "standard errors, or signs of problems, from none."
)


def write(summary: RunSummary, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(summary), encoding="utf-8")


def render(summary: RunSummary) -> str:
    parts = _head(summary)
    for dtype in summary.tested_dtypes:
        parts += [f"## {dtype}", *_dtype(summary, dtype, "###")]
    if summary.checks:
        parts.append(_NOTES)
    parts += _failures(summary.failures)
    parts += _foot(summary)
    return "\n\n".join(parts) + "\n"


def write_per_dtype(summary: RunSummary, folder: Path) -> None:
    """README.md (index), one page per dtype and run.json.

    The folder belongs to the report: pages of dtypes that this run did not test are removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tested = summary.tested_dtypes
    for dtype in FORMATS:
        if dtype not in tested:
            (folder / f"{dtype}.md").unlink(missing_ok=True)
    for dtype in tested:
        own = [f for f in summary.failures if dtype in (f.dtype, *f.dtypes)]
        found = count(len(own), "cause") + " of failure" if own else "no failure"
        page = _head(summary, f"# flashcheck in {dtype}: {found}") + _dtype(summary, dtype, "##")
        page += [_NOTES, *_failures(own), *_foot(summary)]
        (folder / f"{dtype}.md").write_text("\n\n".join(page) + "\n", encoding="utf-8")
    rows = [
        [f"[{dtype}]({dtype}.md)", *_row(target, target.results[dtype])]
        for dtype in tested
        for target in summary.targets
        if dtype in target.results
    ]
    index = _head(summary)
    if rows:
        index += [table(["dtype", *_COLUMNS], rows), _NOTES]
    index += [
        *_failures(summary.failures),
        *_foot(summary),
        "Everything in data: [run.json](run.json)",
    ]
    (folder / "README.md").write_text("\n\n".join(index) + "\n", encoding="utf-8")
    json_report.write(summary, folder / "run.json")


# -- the top ------------------------------------------------------------------------------


def _head(summary: RunSummary, title: str = "") -> list[str]:
    names = [t.name for t in summary.targets] or list(summary.requested)
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    code = "none" if summary.exit_code is None else str(summary.exit_code)
    reason = f": {_inline(summary.reason)}" if summary.reason else ""
    parts = [
        title or f"# flashcheck: {verdict_word(summary)}, {_inline(shown)}",
        (
            f"**{verdict_word(summary)}** (exit {code}){reason}  \n"
            f"{headline(summary)}; seed {summary.seed}, budget {_inline(summary.budget)}"
        ),
    ]
    open_points = untested(summary)
    if open_points:
        points = [f"- {_code(who)}: {_inline(sentence)}" for who, sentence in open_points]
        parts.append("**Not tested**\n\n" + "\n".join(points))
    else:
        parts.append("**Not tested**: nothing that the kernels take or declare was left out.")
    kept = [f"{_code(t.name)} {t.regressions}" for t in summary.targets if t.regressions]
    if kept:
        parts.append(
            "**Regressions first**: kept examples, checked before any problem was generated: "
            + ", ".join(kept)
        )
    sizes = [f"- {_code(t.name)}: {tried(t.sizes)}" for t in summary.targets if t.sizes]
    if sizes:
        parts.append("**Sizes tried**\n\n" + "\n".join(sizes))
    promises = [
        f"- {_code(t.name)}: " + ", ".join(_code(d) for d in t.declared)
        for t in summary.targets
        if t.declared
    ]
    if promises:
        parts.append("**Declared beyond the default contract**\n\n" + "\n".join(promises))
    return parts


# -- tables -------------------------------------------------------------------------------

_COLUMNS = [
    "kernel", "checks", "failed", "worst", "median", "headroom",
    "ulp p50", "p99", "max", "bias ± se",
]  # fmt: skip


def _row(target: TargetSummary, r: DtypeSummary) -> list[str]:
    ulp = r.ulp
    return [
        _code(target.name),
        f"{r.checks:,}",
        f"{r.failed:,}",
        ratio(r.worst.ratio if r.worst else None),
        ratio(r.median),
        bits(r.headroom),
        *(number(x) for x in ((ulp.p50, ulp.p99, ulp.max) if ulp else (None, None, None))),
        _bias(r.bias),
    ]


def _bias(bias: BiasSummary | None) -> str:
    if bias is None:
        return "-"
    mark = "*" if bias.significant else ""
    return signed(bias.mean, bias.standard_error) + mark


def _dtype(summary: RunSummary, dtype: str, heading: str) -> list[str]:
    """All about one dtype: kernels, the worst problems, properties, families."""
    mine = [(t, t.results[dtype]) for t in summary.targets if dtype in t.results]
    parts = [table(_COLUMNS, [_row(t, r) for t, r in mine])]
    lse = [
        [_code(t.name), ratio(r.lse.worst), ratio(r.lse.median), number(r.lse.error_max)]
        for t, r in mine
        if r.lse
    ]
    if lse:
        parts.append(table(["lse of kernel", "worst", "median", "largest error"], lse))
    worst = [
        f"- {_code(t.name)} ({r.worst.property}, ratio {ratio(r.worst.ratio)}): "
        f"{_inline(r.worst.problem)}" + (f" [{_inline(r.worst.config)}]" if r.worst.config else "")
        for t, r in mine
        if r.worst
    ]
    if worst:
        parts += [f"{heading} Worst problems", "\n".join(worst)]
    for title, label, name in (
        ("By property", "property", "by_property"),
        ("By family of scores", "scores", "by_scores"),
        ("By family of values", "values", "by_values"),
    ):
        groups = [(t.name, name_, g) for t, r in mine for name_, g in getattr(r, name).items()]
        if groups:
            parts += [f"{heading} {title}, worst first", _groups(label, groups)]
    return parts


def _groups(label: str, groups: list[tuple[str, str, GroupSummary]]) -> str:
    def order(row: tuple[str, str, GroupSummary]) -> tuple[float, int, str, str]:
        worst = row[2].worst
        return (-(worst if worst is not None else -1.0), -row[2].failures, row[1], row[0])

    header = [label, "kernel", "checks", "failed", "vacuous", "worst", "median", "bias ± se"]
    rows = [
        [_code(name), _code(kernel), f"{g.checks:,}", f"{g.failures:,}", f"{g.vacuous:,}",
         ratio(g.worst), ratio(g.median), _bias(g.bias)]
        for kernel, name, g in sorted(groups, key=order)
    ]  # fmt: skip
    return table(header, rows)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, padded so that it reads in a diff too; numbers to the right."""
    cells = [[_cell(c) for c in row] for row in rows]
    width = [max(len(row[i]) for row in [list(header), *cells]) for i in range(len(header))]
    left = [not any(_is_number(row[i]) for row in cells) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = (
            c.ljust(w) if lj else c.rjust(w) for c, w, lj in zip(row, width, left, strict=True)
        )
        return "| " + " | ".join(padded) + " |"

    rule = ("-" * w if lj else "-" * (w - 1) + ":" for w, lj in zip(width, left, strict=True))
    return "\n".join([line(header), "| " + " | ".join(rule) + " |", *map(line, cells)])


def _is_number(cell: str) -> bool:
    return cell in ("inf", "-inf") or cell[:1].isdigit() or cell[:2].lstrip("+-").isdigit()


# -- the bottom ---------------------------------------------------------------------------


def _failures(failures: Sequence[FailureSummary]) -> list[str]:
    if not failures:
        return []
    parts = ["## Failures"]
    for f in sorted(failures, key=lambda f: -math.inf if math.isnan(f.ratio) else -f.ratio):
        shared = count(f.count, "failing check")
        parts.append(f"### {_code(f.target)} {f.dtype} {f.property}: {f.verdict}, {shared}")
        parts.append(_fence(f.text or f"{f.message}\n\nSmallest input found\n  {f.problem}"))
        seen = f"seen by {', '.join(f.properties)} in {', '.join(f.dtypes)}"
        parts.append(f"Example {_code(f.example_id)}; {seen}")
    return parts


def _foot(summary: RunSummary) -> list[str]:
    parts = []
    if lines := power(summary):
        parts += ["## Power", "\n".join(f"- {_inline(line)}" for line in lines)]
    lines = environment.lines(summary.environment)
    if lines:
        parts += ["## Environment", _fence("\n".join(lines))]
    if summary.command:
        parts += ["## Repeat", _fence(summary.command, "sh")]
    return parts


def _fence(text: str, language: str = "text") -> str:
    """A code fence longer than any run of backticks inside."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _inline(text: str) -> str:
    """Text on one line that Markdown does not take for markup."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", " ".join(text.split()))


def _code(text: str) -> str:
    flat = " ".join(text.split())
    return f"``{flat}``" if "`" in flat else f"`{flat}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
