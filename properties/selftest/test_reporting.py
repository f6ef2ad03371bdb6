"""Reports from synthetic events: what each says first, and that none hides an empty run."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import random
import tracemalloc
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from flashcheck import environment, reporting
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
from flashcheck.fills import Fill
from flashcheck.kernel import Contract, Kernel, Target, absent
from flashcheck.problem import Problem
from flashcheck.reporting import Recorder, RunSummary, github, json_report, junit, markdown, wording
from flashcheck.reporting import summary as summary_module
from flashcheck.reporting.tally import Moments, Quantiles
from flashcheck.reporting.terminal import WIDTH, Terminal, make_console
from flashcheck.verdict import Check, Verdict

ENV: dict[str, Any] = {
    "versions": {"flashcheck": "0.1.0", "python": "3.11.7", "torch": "2.13.0"},
    "oracle": "mpmath 1.3.0/gmpy",
    "device": "cpu",
    "cpu": {"model": "AMD EPYC", "simd": "AVX512", "threads": 1},
    "numeric": {"float32_matmul_precision": "highest", "ftz": False, "daz": False},
    "git": {"commit": "cf77a2b", "dirty": False},
}
PROBLEM = Problem(
    dtype="float16", len_k=33, dim=16, v=Fill("spike", level=1.0, at=32), scores="equal"
)
TEXT = """\
── triton_flash  float16  agreement ──────────── fc-7k2m9q ──
Output is missing the contribution of key 32.

  got 0.0   expected [0.030303]   error 3.0e-2   bound 1.5e-5   (2 000 x the bound)
  at o[b=0, h=0, query=0, d=0]; :smile: [bold]not markup[/bold]"""


def started(*targets: str) -> RunStarted:
    return RunStarted(targets, None, "cpu", "pr", 2871943, "flashcheck gate a --seed 2871943", ENV)


def target(name: str, untested: tuple[str, ...] = (), **declared: Any) -> TargetStarted:
    kernel = Kernel(absent, **declared)
    found = Target(name, name, kernel, ("scale",), file=f"{name}.py", line=7)
    return TargetStarted(found, ("float32", "float16"), "cpu", untested, 300)


def checks(name: str, dtype: str, n: int, seed: int = 0) -> list[Event]:
    """Passing checks of three properties with plausible numbers."""
    draw = random.Random(seed)
    found: list[Event] = []
    for i in range(n):
        problem = dataclasses.replace(
            PROBLEM, dtype=dtype, seed=i, scores=("equal", "late_maximum")[i % 2]
        )
        ratio = draw.uniform(0.05, 0.3)
        stats = {
            "ratio_out": ratio,
            "ratio_lse": ratio / 2,
            "ulp": sorted(draw.uniform(0, 0.5) for _ in range(32)),
            "ulp_max": 0.5,
            "signed_mean": draw.gauss(0, 0.1),
            "n": 512,
            "lse_error_max": 1e-7,
        }
        for check in (
            Check("agreement", Verdict.PASS, ratio, stats=stats),
            Check("two_calls", Verdict.PASS, 0.0),
            Check("ones", Verdict.VACUOUS if i == 0 else Verdict.PASS, 0.9 if i == 0 else 0.1),
        ):
            found.append(Checked(name, dtype, problem, None, check))
    return found


def failing(name: str = "triton_flash", count: int = 13) -> list[Event]:
    check = Check("agreement", Verdict.VIOLATION, 2000.4, "tail", "Output misses key 32.")
    found: list[Event] = [Checked(name, "float16", PROBLEM, None, check) for _ in range(count)]
    failure = FailureFound(
        name, "float16", "fc-7k2m9q", PROBLEM, None, check, count,
        ("agreement",), ("float16",), text=TEXT,
    )  # fmt: skip
    return [*found, failure]


def passing_run() -> list[Event]:
    return [
        started("torch_sdpa"),
        target("torch_sdpa", ("lse is not returned",)),
        *checks("torch_sdpa", "float32", 100, 1),
        *checks("torch_sdpa", "float16", 100, 2),
        TargetFinished("torch_sdpa", 12.3, "budget"),
        RunFinished(0, "every check within its bound", 12.9),
    ]


def failing_run() -> list[Event]:
    return [
        started("torch_sdpa", "triton_flash", "gone.py:f"),
        target("torch_sdpa", ("lse is not returned",)),
        *checks("torch_sdpa", "float32", 40, 1),
        *checks("torch_sdpa", "float16", 40, 2),
        TargetFinished("torch_sdpa", 12.3, "budget"),
        TargetFailed("gone.py:f", "gone.py does not exist\nlooked in the current folder"),
        target("triton_flash", (), masked_rows="nan", contract=Contract(qk="tf32")),
        *checks("triton_flash", "float32", 40, 3),
        *checks("triton_flash", "float16", 40, 4),
        *failing(),
        TargetFinished("triton_flash", 141.0, "max failures", ("ones float16 (3 checks)",)),
        RunFinished(1, "a kernel leaves its bound", 161.2),
    ]


def empty_run() -> list[Event]:
    check = Check("agreement", Verdict.UNSUPPORTED, message="NotImplementedError")
    return [
        started("mine"),
        target("mine", ("float32 is refused: CUDA only", "float16 is refused: CUDA only")),
        Checked("mine", "float32", PROBLEM, None, check),
        TargetFinished("mine", 0.1, "nothing to do"),
        RunFinished(3, "no check was made", 0.2),
    ]


def partial_run() -> list[Event]:
    return [
        started("torch_sdpa", "triton_flash"),
        target("torch_sdpa"),
        *checks("torch_sdpa", "float32", 5),
        RunFinished(130, "interrupted", 3.0, partial=True),
    ]


RUNS = {f.__name__: f for f in (passing_run, failing_run, empty_run, partial_run)}


def fold(events: list[Event]) -> RunSummary:
    recorder = Recorder()
    for event in events:
        recorder(event)
    return recorder.summary()


def shown(events: list[Event], **options: Any) -> str:
    file = io.StringIO()
    recorder = Recorder()
    console = options.pop("console", None) or make_console(file=file)
    terminal = Terminal(recorder, console=console, **options)
    for event in events:
        recorder(event)
        terminal(event)
    return console.file.getvalue() if isinstance(console.file, io.StringIO) else ""


# -- summary ------------------------------------------------------------------------------


def test_counts_and_statistics_of_a_passing_dtype() -> None:
    r = fold(passing_run()).targets[0].results["float16"]
    assert (r.checks, r.passed, r.failed, r.vacuous, r.refused) == (300, 299, 0, 1, 0)
    assert r.worst is not None
    assert r.worst.property == "agreement"
    assert r.worst.ratio < 0.3
    assert r.headroom == pytest.approx(-math.log2(r.worst.ratio))
    assert r.median == pytest.approx(0.175, abs=0.04)
    assert r.ulp is not None
    assert r.ulp.max == 0.5
    assert r.ulp.p50 == pytest.approx(0.25, rel=0.1)
    assert r.bias is not None
    assert r.bias.problems == 100
    assert r.bias.standard_error == pytest.approx(0.01, rel=0.3)
    assert not r.bias.significant
    assert r.by_property["ones"].vacuous == 1
    assert r.by_scores["equal"].checks == r.by_scores["late_maximum"].checks == 150
    assert r.lse is not None
    assert r.lse.error_max == 1e-7


def test_sizes_that_no_check_says_anything_about_were_not_tried() -> None:
    wide = dataclasses.replace(PROBLEM, dim=132, len_k=4099)
    vacuous = Checked("torch_sdpa", "float16", wide, None, Check("ones", Verdict.VACUOUS))
    told = Checked("torch_sdpa", "float16", wide, None, Check("ones", Verdict.PASS))
    first, *rest = passing_run()
    untold = fold([first, rest[0], vacuous, *rest[1:]]).targets[0].sizes
    assert untold is not None
    assert (untold.head_sizes, untold.queries, untold.keys, untold.heads) == ((16,), 1, 33, 1)
    events = [first, rest[0], told, *rest[1:]]
    line = "head sizes 16, 132; up to 1 query, 4,099 keys and 1 head of all batches"
    assert line in shown(events)
    assert line in " ".join(markdown.render(fold(events)).split())
    assert fold(empty_run()).targets[0].sizes is None


def test_what_a_kernel_said_when_it_refused_is_told() -> None:
    refusals = [
        Check("agreement", Verdict.UNSUPPORTED, message=m) for m in ("odd Lq", "", "odd Lq")
    ]
    events = passing_run()
    events[2:2] = [Checked("torch_sdpa", "float32", PROBLEM, None, c) for c in refusals]
    assert fold(events).targets[0].results["float32"].refusals == {"odd Lq": 2, "": 1}
    text = " ".join(shown(events).split())
    assert "refused (NotImplementedError): float32 3 of 303 (it says: odd Lq)" in text
    assert "600 checks in 12 s" in text


def test_a_vacuous_ratio_and_an_exact_law_do_not_enter_worst_and_median() -> None:
    r = fold(passing_run()).targets[0].results["float32"]
    assert r.worst is not None
    assert r.worst.ratio < 0.9
    assert r.median is not None
    assert r.median > 0.05


def test_nan_ratio_counts_as_infinite_and_absent_statistics_are_none() -> None:
    nan = Check("agreement", Verdict.VIOLATION, math.nan, "nan", "NaN")
    events: list[Event] = [started("a"), target("a"), Checked("a", "float32", PROBLEM, None, nan)]
    r = fold(events).targets[0].results["float32"]
    assert r.worst is not None
    assert r.worst.ratio == math.inf
    assert r.headroom == -math.inf
    assert r.ulp is None
    assert r.bias is None
    assert r.lse is None


def test_problems_outside_the_contract_are_counted_apart() -> None:
    outside = Check("agreement", Verdict.VACUOUS, stats={"outside": True})
    summary = fold([started("a"), target("a"), Checked("a", "float32", PROBLEM, None, outside)])
    r = summary.targets[0].results["float32"]
    assert (r.checks, r.outside, r.vacuous, r.worst) == (1, 1, 0, None)


def test_memory_does_not_grow_with_the_checks() -> None:
    recorder = Recorder()
    recorder(started("a"))
    recorder(target("a"))
    events = checks("a", "float32", 200)
    tracemalloc.start()
    try:
        for _ in range(30):
            for event in events:
                recorder(event)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert recorder.summary().checks == 18_000
    assert used < 300_000


def test_quantiles_are_within_half_a_percent() -> None:
    draw = random.Random(5)
    numbers = [math.exp(draw.gauss(0, 5)) for _ in range(5000)]
    quantiles = Quantiles()
    for x in numbers:
        quantiles.add(x, 1 / 32)
    numbers.sort()
    for q in (0.01, 0.5, 0.9, 0.99):
        assert quantiles.quantile(q) == pytest.approx(numbers[math.ceil(q * 5000) - 1], rel=0.005)
    assert quantiles.quantile(1.0) == pytest.approx(numbers[-1], rel=0.005)


def test_quantiles_of_zeros_and_infinities() -> None:
    quantiles = Quantiles()
    assert quantiles.quantile(0.5) is None
    for x in (0.0, 0.0, 3.0, math.inf, math.nan):
        quantiles.add(x)
    assert quantiles.quantile(0.5) == 0.0
    assert quantiles.quantile(0.75) == pytest.approx(3.0, rel=0.005)
    assert quantiles.quantile(1.0) == math.inf


def test_bias_by_family() -> None:
    """A bias that one family of scores has and another has not."""
    events = []
    for event in checks("k", "float32", 100):
        assert isinstance(event, Checked)
        lean = 0.5 if event.problem.scores == "equal" else -0.5
        stats = {**event.check.stats, "signed_mean": lean} if event.check.stats else {}
        events.append(
            dataclasses.replace(event, check=dataclasses.replace(event.check, stats=stats))
        )
    summary = fold([started("k"), target("k"), *events, RunFinished(0, "", 1.0)])
    r = summary.targets[0].results["float32"]
    assert r.bias is not None
    assert abs(r.bias.mean) < 1e-9
    equal, late = r.by_scores["equal"].bias, r.by_scores["late_maximum"].bias
    assert equal is not None
    assert late is not None
    assert (equal.mean, late.mean, equal.problems) == (0.5, -0.5, 50)
    assert equal.significant
    assert r.by_property["two_calls"].bias is None
    assert summary.exit_code == 0
    rows = [line for line in markdown.render(summary).splitlines() if line.startswith("| `equal`")]
    assert "+0.50 ± 0*" in rows[0]


def test_bias_is_significant_by_its_signs_where_outliers_hide_the_mean() -> None:
    moments = Moments()
    for i in range(100):
        moments.add(-1e6 if i == 0 else 0.01)
    bias = summary_module.BiasSummary(
        moments.mean, moments.standard_error, moments.n, moments.positive, moments.negative
    )
    assert moments.standard_error is not None
    assert abs(moments.mean) < 3 * moments.standard_error
    assert bias.significant


# -- JSON ---------------------------------------------------------------------------------


@pytest.mark.parametrize("run", RUNS)
def test_json_keeps_the_schema_and_reads_back(run: str, tmp_path: Path) -> None:
    summary = fold(RUNS[run]())
    path = tmp_path / "new" / "run.json"
    json_report.write(summary, path)
    data = json.loads(path.read_text(), parse_constant=pytest.fail)
    json_report.validate(data)
    assert data["format_version"] == 1
    assert json_report.read(path) == summary


def test_infinity_is_a_string_and_nan_is_null(tmp_path: Path) -> None:
    crash = Check("agreement", Verdict.CRASH, math.inf, "crash", "it crashed")
    summary = fold([started("a"), target("a"), Checked("a", "float32", PROBLEM, None, crash)])
    summary = dataclasses.replace(summary, environment={**ENV, "odd": math.nan})
    json_report.write(summary, tmp_path / "run.json")
    data = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    result = data["targets"][0]["results"]["float32"]
    assert (result["worst"]["ratio"], result["headroom"]) == ("inf", "-inf")
    assert data["environment"]["odd"] is None
    json_report.validate(data)
    again = json_report.read(tmp_path / "run.json").targets[0].results["float32"]
    assert again.worst is not None
    assert again.worst.ratio == math.inf


def test_the_schema_names_every_field_and_no_other() -> None:
    defs = json_report.schema()["$defs"]
    for name, record in (
        ("target", summary_module.TargetSummary),
        ("result", summary_module.DtypeSummary),
        ("worst", summary_module.WorstCheck),
        ("group", summary_module.GroupSummary),
        ("output", summary_module.OutputSummary),
        ("ulp", summary_module.UlpSummary),
        ("bias", summary_module.BiasSummary),
        ("failure", summary_module.FailureSummary),
        ("error", summary_module.TargetError),
    ):
        assert set(defs[name]["properties"]) == {f.name for f in dataclasses.fields(record)}, name
    top = {f.name for f in dataclasses.fields(RunSummary)} | {"format_version"}
    assert set(json_report.schema()["properties"]) == top


def test_the_schema_refuses_a_bare_infinity_and_a_wrong_version() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    data = json_report.to_dict(fold(passing_run()))
    for change in ({"format_version": 2}, {"seconds": "inf"}, {"exit_code": 7}):
        with pytest.raises(jsonschema.ValidationError):
            json_report.validate({**data, **change})


@pytest.mark.parametrize("text", ["", "[1]", '{"format_version": 2}', '{"format_version": 1}'])
def test_reading_something_else_says_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(json_report.ReportError, match=r"x\.json"):
        json_report.read(tmp_path / "x.json")


# -- terminal -----------------------------------------------------------------------------


def test_terminal_of_a_passing_run() -> None:
    out = shown(passing_run(), reports=[Path("out/run.json")]).splitlines()
    assert out[:4] == [
        "flashcheck 0.1.0  torch 2.13.0  python 3.11.7  oracle mpmath 1.3.0/gmpy",
        "cpu AMD EPYC  AVX512  1 thread",
        "TF32 off  matmul precision highest  FTZ off  commit cf77a2b",
        "seed 2871943  budget pr  dtypes all that the kernel takes",
    ]
    assert out[5:8] == [
        "torch_sdpa  float32, float16  on cpu",
        "  not tested: lse is not returned",
        "  torch_sdpa: 600 checks in 12 s (stopped by budget)",
    ]
    header = next(line for line in out if line.startswith("kernel"))
    assert header.split() == [
        "kernel", "dtype", "checks", "pass", "fail", "vacuous", "worst", "ratio", "headroom",
    ]  # fmt: skip
    row = next(line for line in out if line.startswith("torch_sdpa  float16"))
    assert row.split() == ["torch_sdpa", "float16", "300", "299", "0", "1", "0.30", "1.7", "bits"]
    assert out[-1] == (
        "PASSED  1 kernel, 600 checks, 13 s  report: out/run.json  "
        "exit 0: every check within its bound"
    )


def test_terminal_prints_a_failure_verbatim_and_flags_its_row() -> None:
    out = shown(failing_run())
    assert TEXT in out
    rows = [line for line in out.splitlines() if line.startswith("triton_flash")]
    assert rows[-1].split()[2:] == ["133", "119", "13", "1", "2.0e3", "-11.0", "bits", "FAIL"]
    assert "gone.py:f: could not run" in out
    assert "declared: masked_rows='nan', contract.qk='tf32'" in out
    assert "not tested: triton_flash: too few checks to prove anything: ones float16" in out
    end = " ".join(out.split())
    assert "FAILED 2 kernels, 493 checks, 1 could not run, 1 cause in 13 failing checks" in end
    assert end.endswith("exit 1: a kernel leaves its bound")


def test_terminal_says_that_nothing_was_tested() -> None:
    out = shown(empty_run())
    assert "not tested: mine: no check ran in float32, float16" in out
    assert "not tested: this run: made no check at all" in out
    assert "refused" in out
    assert "kernel  " not in out
    assert out.splitlines()[-1].startswith("PROVES NOTHING  1 kernel, 0 checks")


def test_terminal_of_an_interrupted_run() -> None:
    out = shown(partial_run())
    assert "not tested: triton_flash: never reached" in out
    assert "not tested: this run: is partial" in out
    assert "INTERRUPTED" in out
    assert "exit 130" in out


def test_quiet_keeps_failures_gaps_and_the_verdict() -> None:
    out = shown(failing_run(), quiet=True)
    assert "seed 2871943" not in out
    assert "kernel  " not in out
    assert TEXT in out
    assert "not tested: lse is not returned" in out
    assert "FAILED" in out


@pytest.mark.parametrize("run", RUNS)
def test_lines_fit_and_no_escape_reaches_a_file(run: str) -> None:
    out = shown(RUNS[run]())
    assert max(map(len, out.splitlines())) <= WIDTH
    assert "\x1b" not in out
    assert "\r" not in out


def test_a_long_name_gives_way() -> None:
    name = "torch.nn.functional:scaled_dot_product_attention[efficient,with a long configuration]"
    check = Check("agreement", Verdict.UNSUPPORTED)
    crash = [Check("agreement", Verdict(v), math.inf) for v in ("CRASH", "TIMEOUT", "VIOLATION")]
    events = [
        started(name), target(name), *checks(name, "float16", 400),
        *(Checked(name, "float16", PROBLEM, None, c) for c in (check, *crash)),
        RunFinished(1, "crash", 1.0),
    ]  # fmt: skip
    lines = shown(events).splitlines()
    assert max(map(len, lines)) <= WIDTH
    table = "\n".join(lines)
    for verdict in ("VIOLATION", "CRASH", "TIMEOUT"):
        assert verdict in table
    assert "-inf" in table
    assert "1,203" in table


def test_colour_and_progress_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def screen(**options: Any) -> Console:
        return Console(file=io.StringIO(), force_terminal=True, width=WIDTH, **options)

    coloured = shown(failing_run(), console=screen())
    assert "\x1b[1;31mFAILED" in coloured
    assert "━" in coloured
    plain = shown(failing_run(), console=screen(no_color=True))
    assert "\x1b[1;31m" not in plain
    assert "31m" not in plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert make_console(file=io.StringIO()).no_color


# -- Markdown -----------------------------------------------------------------------------


def test_markdown_says_the_verdict_then_what_was_not_tested() -> None:
    text = markdown.render(fold(failing_run()))
    lines = text.splitlines()
    assert lines[0] == "# flashcheck: FAILED, torch\\_sdpa, triton\\_flash"
    assert lines[2].startswith("**FAILED** (exit 1): a kernel leaves its bound")
    assert lines[5] == "**Not tested**"
    assert lines[7] == "- `torch_sdpa`: lse is not returned"
    assert text.index("**Not tested**") < text.index("## float32") < text.index("## Failures")
    assert f"```text\n{TEXT}\n```" in text
    assert "- `triton_flash`: `masked_rows='nan'`, `contract.qk='tf32'`" in text
    assert text.rstrip().endswith("```sh\nflashcheck gate a --seed 2871943\n```")


def test_markdown_tables_are_worst_first_and_well_formed() -> None:
    text = markdown.render(fold(failing_run()))
    part = text[text.index("### By property", text.index("## float16")) :].splitlines()
    assert part[4].startswith("| `agreement`")
    assert "2.0e3" in part[4]
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1


def test_markdown_of_empty_and_partial_runs_does_not_look_green() -> None:
    empty = markdown.render(fold(empty_run()))
    assert empty.startswith("# flashcheck: PROVES NOTHING")
    assert "made no check at all" in empty
    unfinished = markdown.render(fold(partial_run()[:-1]))
    assert unfinished.startswith("# flashcheck: INTERRUPTED")
    assert "is partial" in unfinished


def test_markdown_fence_is_longer_than_the_backticks_inside() -> None:
    events: list[Event] = [
        dataclasses.replace(e, text="a\n````\nb") if isinstance(e, FailureFound) else e
        for e in failing_run()
    ]
    assert "`````text\na\n````\nb\n`````" in markdown.render(fold(events))


def test_per_dtype_folder_replaces_stale_pages(tmp_path: Path) -> None:
    (tmp_path / "float64.md").write_text("old")
    (tmp_path / "notes.md").write_text("mine")
    markdown.write_per_dtype(fold(failing_run()), tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"README.md", "float32.md", "float16.md", "run.json", "notes.md"}
    assert "[float16](float16.md)" in (tmp_path / "README.md").read_text()
    page = (tmp_path / "float32.md").read_text()
    assert page.startswith("# flashcheck in float32: no failure")
    assert TEXT not in page
    assert TEXT in (tmp_path / "float16.md").read_text()
    json_report.validate(json.loads((tmp_path / "run.json").read_text()))


# -- JUnit and GitHub ---------------------------------------------------------------------


def test_junit_has_a_case_per_kernel_dtype_and_property(tmp_path: Path) -> None:
    junit.write(fold(failing_run()), tmp_path / "junit.xml")
    root = ET.parse(tmp_path / "junit.xml").getroot()
    cases = {(c.get("classname"), c.get("name")): c for c in root.iter("testcase")}
    bad = cases["triton_flash.float16", "agreement"]
    failure = bad.find("failure")
    assert failure is not None
    assert failure.get("message") == "Output misses key 32."
    assert failure.text is not None
    assert "[bold]not markup[/bold]" in failure.text
    properties = {p.get("name"): p.get("value") for p in bad.iter("property")}
    assert properties["seed"] == "2871943"
    assert properties["example"] == "fc-7k2m9q"
    assert cases["triton_flash.float32", "agreement"].find("failure") is None
    assert cases["gone.py:f", "load"].find("error") is not None
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("14", "1", "1")


@pytest.mark.parametrize("run", ["empty_run", "partial_run"])
def test_junit_of_a_run_that_proves_nothing_has_a_failing_gate(run: str) -> None:
    root = junit.build(fold(RUNS[run]()))
    assert root.find("testsuite/testcase[@name='gate']/failure") is not None


def test_junit_survives_control_characters(tmp_path: Path) -> None:
    events: list[Event] = [
        started("a"),
        TargetFailed("a", "bad \x00\x1b[31m byte"),
        RunFinished(2, "a", 0.1),
    ]
    junit.write(fold(events), tmp_path / "junit.xml")
    assert ET.parse(tmp_path / "junit.xml").find(".//error") is not None


def test_github_annotates_the_kernel_line_and_appends_the_summary(tmp_path: Path) -> None:
    path, stream, recorder = tmp_path / "summary.md", io.StringIO(), Recorder()
    path.write_text("before\n")
    env = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(path)}
    listener = github.GitHub(recorder, env=env, stream=stream)
    for event in failing_run():
        recorder(event)
        listener(event)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(
        "::error file=triton_flash.py,line=7,title=triton_flash float16 agreement%3A VIOLATION::"
        "Output misses key 32. (ratio 2.0e3, 13 failing checks)%0A"
    )
    assert path.read_text().startswith("before\n# flashcheck: FAILED")
    assert github.active(env)
    assert not github.active({})


def test_github_shows_nine_and_counts_the_rest() -> None:
    events = failing_run()
    failure = next(e for e in events if isinstance(e, FailureFound))
    lines = github.commands(fold([*events[:-1], *[failure] * 20, events[-1]]))
    assert len(lines) == 10
    assert lines[-1].endswith("::and 13 more; see the report")


def test_github_says_why_a_run_without_failures_is_red() -> None:
    assert github.commands(fold(empty_run())) == [
        "::error title=flashcheck%3A PROVES NOTHING::no check was made"
    ]
    assert github.commands(fold(passing_run())) == []


def test_github_summary_is_cut_below_its_limit() -> None:
    text = "head\n\n```text\n" + "é line of a failure\n" * 1000 + "```\n"
    cut = github.trim(text, 5000)
    assert len(cut.encode()) <= 5000
    assert "left out" in cut
    assert cut.count("```") == 2
    assert github.trim(text, 10**6) == text
    assert github.trim(text, 10) == ""


# -- the small parts ----------------------------------------------------------------------


def test_report_argument() -> None:
    assert reporting.parse_report("md=out/a=b.md") == ("md", Path("out/a=b.md"))
    with pytest.raises(ValueError, match="json, md, junit"):
        reporting.parse_report("html=x.html")
    for text in ("run.json", "json="):
        with pytest.raises(ValueError, match="FORMAT=PATH"):
            reporting.parse_report(text)


def test_every_format_can_be_written(tmp_path: Path) -> None:
    wanted = [reporting.parse_report(f"{name}={tmp_path / name}") for name in reporting.WRITERS]
    reporting.write_reports(fold(failing_run()), wanted)
    assert {p.name for p in tmp_path.iterdir()} == set(reporting.WRITERS)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (0.0, "0"), (0.3149, "0.31"), (1.0, "1.0"), (12.34, "12"), (123.4, "123"), (999.9, "1.0e3"),
        (2000.4, "2.0e3"), (1.5e-5, "1.5e-5"), (0.0012, "0.0012"), (math.inf, "inf"), (None, "-"),
    ],
)  # fmt: skip
def test_short_numbers(x: float | None, text: str) -> None:
    assert wording.number(x) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [(1.0, "1.0"), (1.0004, "1.0004"), (0.996, "0.996"), (1.04, "1.04"), (0.3, "0.30")],
)
def test_a_ratio_shows_its_side_of_one(x: float, text: str) -> None:
    assert wording.ratio(x) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.24, "0.2 s"), (59.7, "1 min 0 s"), (161, "2 min 41 s"), (3720, "1 h 2 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


# -- environment --------------------------------------------------------------------------


def test_environment_is_json_without_paths() -> None:
    env = environment.collect("cpu")
    text = json.dumps(env, allow_nan=False)
    assert str(Path.home()) not in text
    assert str(Path.cwd()) not in text
    assert env["versions"]["torch"]
    assert env["oracle"].startswith("mpmath ")
    assert 2 <= len(environment.lines(env)) <= 3
    assert environment.lines({}) == []


def test_flush_to_zero_is_seen() -> None:
    import torch

    assert not environment.flushes_results()
    assert not environment.flushes_operands()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        assert environment.flushes_results()
        assert environment.flushes_operands()
    finally:
        torch.set_flush_denormal(False)
    assert not environment.flushes_results()


@pytest.mark.parametrize(
    ("flags", "on"),
    [
        ({}, False),
        ({"float32_matmul_precision": "high"}, True),
        ({"cuda_allow_tf32": True}, True),
        ({"cuda_fp32_precision": "tf32"}, True),
        ({"fp32_precision": "ieee", "cudnn_allow_tf32": True}, False),
    ],
)
def test_tf32_is_read_from_old_and_new_switches(flags: dict[str, Any], on: bool) -> None:
    assert environment.tf32(flags) is on
