"""JUnit XML: one test case per kernel, dtype and property, and one for the gate itself."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from flashcheck.reporting.summary import FailureSummary, GroupSummary, RunSummary, TargetSummary
from flashcheck.reporting.wording import count, ratio, untested

# XML 1.0 has no way to write these characters, and a kernel's message may hold them.
_ILLEGAL = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(summary: RunSummary, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    tree = ET.ElementTree(build(summary))
    ET.indent(tree)
    tree.write(path, encoding="utf-8", xml_declaration=True)


def build(summary: RunSummary) -> ET.Element:
    root = ET.Element("testsuites", name="flashcheck", time=f"{summary.seconds:.3f}")
    gate = ET.SubElement(root, "testsuite", name="flashcheck")
    _properties(gate, seed=summary.seed, budget=summary.budget, command=summary.command)
    _gate(gate, summary)
    for error in summary.errors:
        case = ET.SubElement(gate, "testcase", classname=_text(error.spec), name="load")
        _problem(case, "error", "could not run", error.message)
    for target in summary.targets:
        for dtype, result in target.results.items():
            suite = ET.SubElement(root, "testsuite", name=_text(f"{target.name}.{dtype}"))
            for name, group in result.by_property.items():
                _case(suite, summary, target, dtype, name, group)
    for suite in root:
        for key, tag in (
            ("tests", "testcase"),
            ("failures", "failure"),
            ("errors", "error"),
            ("skipped", "skipped"),
        ):
            suite.set(key, str(len(list(suite.iter(tag)))))
    for key in ("tests", "failures", "errors", "skipped"):
        root.set(key, str(sum(int(suite.get(key, "0")) for suite in root)))
    return root


def _gate(suite: ET.Element, summary: RunSummary) -> None:
    """`flashcheck::gate`: a run that proves nothing must not be green."""
    case = ET.SubElement(suite, "testcase", classname="flashcheck", name="gate")
    open_points = [f"{who}: {sentence}" for who, sentence in untested(summary)]
    if summary.exit_code not in (0, 1) or summary.partial:
        _problem(
            case, "failure", summary.reason or "the run did not finish", "\n".join(open_points)
        )
    if open_points:
        out = ET.SubElement(case, "system-out")
        out.text = _text("not tested\n" + "\n".join(open_points))


def _case(
    suite: ET.Element,
    summary: RunSummary,
    target: TargetSummary,
    dtype: str,
    name: str,
    group: GroupSummary,
) -> None:
    case = ET.SubElement(
        suite, "testcase", classname=_text(f"{target.name}.{dtype}"), name=_text(name)
    )
    if target.file:
        case.set("file", _text(target.file))
    causes = [
        f for f in target.failures
        if name in (f.property, *f.properties) and dtype in (f.dtype, *f.dtypes)
    ]  # fmt: skip
    _properties(
        case,
        seed=summary.seed,
        checks=group.checks,
        vacuous=group.vacuous,
        worst_ratio=ratio(group.worst),
        **({"example": ", ".join(f.example_id for f in causes)} if causes else {}),
    )
    if group.failures:
        message = causes[0].message if causes else f"{count(group.failures, 'check')} failed"
        _problem(case, "failure", message, "\n\n".join(map(_cause, causes)))
    elif group.vacuous == group.checks:
        ET.SubElement(case, "skipped", message="every check was vacuous")


def _cause(failure: FailureSummary) -> str:
    return failure.text or f"{failure.message}\n{failure.problem}"


def _problem(case: ET.Element, tag: str, message: str, text: str) -> None:
    ET.SubElement(case, tag, message=_text(message)).text = _text(text)


def _properties(parent: ET.Element, **values: object) -> None:
    holder = ET.SubElement(parent, "properties")
    for name, value in values.items():
        ET.SubElement(holder, "property", name=name, value=_text(str(value)))


def _text(text: str) -> str:
    return _ILLEGAL.sub("�", text)
