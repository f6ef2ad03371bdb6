"""The gate as CI sees it: exit codes, one clear line for each error, seeds and reports."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import flashcheck
from flashcheck import examples
from flashcheck.cli import main
from flashcheck.events import Checked, Event
from flashcheck.formats import DTYPES
from flashcheck.law import Subject, laws
from flashcheck.probe import probe
from flashcheck.reporting import Recorder, json_report
from flashcheck.verdict import Verdict
from flashcheck.worker import InProcess, Worker

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

RIGHT = """
    import os, signal, time
    import torch

    def attention(query, key, value, *, attn_mask=None, is_causal=False, scale=None):
        q, k, v = query.double(), key.double(), value.double()
        s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        {before}
        if is_causal:
            i, j = torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])
            s = s.masked_fill(j > i + {late}, -torch.inf)
        if attn_mask is not None:
            bias = attn_mask.dtype != torch.bool
            s = s + attn_mask.double() if bias else s.masked_fill(~attn_mask, -torch.inf)
        p = s.softmax(-1)
        p = {weights}
        {after}
        out = p @ v
        return {out}
    """


def kernel(
    *,
    before: str = "",
    late: int = 0,
    weights: str = "torch.where(p.isnan(), 0.0, p)",
    after: str = "",
    out: str = "out.to(query.dtype)",
) -> str:
    return textwrap.dedent(
        RIGHT.format(before=before, late=late, weights=weights, after=after, out=out)
    )


LARGE = "key.shape[2] >= 8 and value.abs().max() > 4"
"""A condition that no benign problem of the probe meets and many others do."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("GITHUB_", "FLASHCHECK")):
            monkeypatch.delenv(name)
    (tmp_path / "right.py").write_text(kernel())
    return tmp_path


@dataclass(frozen=True)
class Ran:
    code: int
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    @property
    def flat(self) -> str:
        return " ".join(self.output.split())


def gate(*arguments: str, isolate: bool = False) -> Ran:
    """`flashcheck gate` in this process."""
    flags = [] if isolate else ["--no-isolate"]
    done = CliRunner().invoke(main, ["gate", *flags, *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Ran(done.exit_code, done.output)


def outside() -> dict[str, str]:
    """The environment of another process, without that of this test run."""
    ours = ("PYTEST", "GITHUB_", "HYPOTHESIS", "FLASHCHECK")
    return {name: text for name, text in os.environ.items() if not name.startswith(ours)}


# -- 0 and 1 ------------------------------------------------------------------------------


def test_right_with_a_report() -> None:
    """Exit code 0; the JSON is valid and its checks are those of the budget, and regressions."""
    ran = gate("right.py:attention", "--budget", "600", "--seed", "3", "--report", "json=r.json")
    assert ran.code == 0, ran.output
    assert "PASSED" in ran.output
    assert "seed 3" in ran.output
    data = json.loads(Path("r.json").read_text())
    json_report.validate(data)
    assert (data["exit_code"], data["partial"], data["seed"]) == (0, False, 3)
    results = data["targets"][0]["results"]
    assert set(results) == {"float32", "float16", "bfloat16"}
    checks = [r["checks"] for r in results.values()]
    assert sum(checks) == 600 + data["targets"][0]["regressions"]
    for result in results.values():
        counts = {name: group["checks"] for name, group in result["by_property"].items()}
        # The kernel does not name enable_gqa, num_splits or sequences, and brings no backward.
        with InProcess("right.py:attention") as runner:
            target = runner.start()
            space = probe(runner, target, ("float32",)).spaces["float32"]
            subject = Subject(runner, target, space)
            assert set(counts) == {law.name for law in laws() if law.possible(subject)}
            assert not {"gqa_repeated_heads", "split_independence", "gradients"} & set(counts)
        others = [n for name, n in counts.items() if name != "agreement"]
        assert min(others) >= 5
        assert sum(counts.values()) == result["checks"]


@pytest.mark.parametrize(
    ("code", "flags", "verdict"),
    [
        (kernel(out="(out * 1.01).to(query.dtype)"), [], "VIOLATION"),
        (kernel(before=f"if {LARGE}: os.kill(os.getpid(), signal.SIGSEGV)"), [], "CRASH"),
        (kernel(before=f"if {LARGE}: time.sleep(30)"), ["--timeout", "1"], "TIMEOUT"),
        (
            kernel(out="(out * (1 + 1e-2 * torch.rand(()))).to(query.dtype)"),
            ["--seed", "1"],
            "NONDETERMINISTIC",
        ),
    ],
    ids=["violation", "crash", "timeout", "nondeterministic"],
)
def test_wrong(code: str, flags: list[str], verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("wrong.py").write_text(code)
    # A process that dies or hangs costs seconds.
    monkeypatch.setattr("flashcheck.search.ENOUGH_LOSSES", 2)
    monkeypatch.setattr("flashcheck.causes.shrink", lambda problem, *_, **__: problem)
    isolate = verdict in ("CRASH", "TIMEOUT")
    ran = gate(
        "wrong.py:attention", "--dtype", "float32", "--budget", "250", "--report", "json=r.json",
        *flags, isolate=isolate,
    )  # fmt: skip
    assert ran.code == 1, ran.output
    assert "FAILED" in ran.output
    data = json.loads(Path("r.json").read_text())
    json_report.validate(data)
    (target,) = data["targets"]
    assert target["results"]["float32"]["verdicts"].get(verdict), target["results"]
    assert verdict in {f["verdict"] for f in target["failures"]}
    for found in target["failures"]:
        assert f"flashcheck replay {found['example_id']}" in ran.output
        assert examples.load(Path(".flashcheck/examples", f"{found['example_id']}.json"))
    for word in {"CRASH": ["SIGSEGV"], "TIMEOUT": ["1 s"]}.get(verdict, []):
        assert word in ran.output


def test_two_bugs_are_two_causes() -> None:
    Path("wrong.py").write_text(kernel(late=1, weights="p"))
    result = flashcheck.gate(
        ["wrong.py:attention"], dtypes=["float32"], budget="1000", seed=0, isolate=False
    )
    assert result.exit_code == 1
    said = [f.text for f in result.failures]
    causal = [f for f in result.failures if f.problem.is_causal and f.problem.mask is None]
    hidden = [f for f in result.failures if f.problem.mask is not None and f.check.counts["nan"]]
    assert any("key i + 1" in f.text for f in causal), said
    assert any("NaN" in f.text for f in hidden), said
    assert all("key i + 1" not in f.text for f in hidden), said


def test_what_comes_and_goes_is_one_cause() -> None:
    text = kernel().replace(
        "import torch", "import itertools\n\nimport torch\n\nN = itertools.count(1)"
    )
    text += "\n\ndef sometimes(query, key, value):\n    out = attention(query, key, value)\n"
    text += "    return out * 1.1 if next(N) % 37 == 0 else out\n"
    Path("sometimes.py").write_text(text)
    result = flashcheck.gate(
        ["sometimes.py:sometimes"], dtypes=["float32", "float16"], budget="2000", seed=0,
        isolate=False,
    )  # fmt: skip
    assert result.exit_code == 1
    assert len(result.failures) == 1, [f.text for f in result.failures]


def test_an_output_in_float8_has_the_wrong_form() -> None:
    ran = gate("right.py:attention", "--dtype=float8_e5m2", "--budget=60")
    assert ran.code == 1
    assert "out has dtype float8_e5m2; it should be bfloat16 or float16" in ran.flat


def test_dtypes_that_were_not_tried_are_told() -> None:
    ran = gate("right.py:attention", "--budget=20")
    assert "not tested: float64, float8_e4m3fn, float8_e5m2: neither asked for" in ran.flat
    assert "float8" not in gate("right.py:attention", "--dtype=float16", "--budget=20").output


def test_crashes_that_come_and_go_are_another_cause() -> None:
    """Beside sums in an order that changes."""
    text = kernel() + "\n\nimport itertools\n\nN = itertools.count(1)\n\n"
    text += (
        "def sometimes(query, key, value):\n    out, n = attention(query, key, value), next(N)\n"
    )
    text += "    if n % 41 == 0:\n        raise RuntimeError('illegal memory access')\n"
    Path("sometimes.py").write_text(text + "    return out * 1.1 if n % 3 == 0 else out\n")
    result = flashcheck.gate(
        ["sometimes.py:sometimes"], dtypes=["float32"], budget="1000", seed=0, isolate=False
    )
    verdicts = [f.check.verdict for f in result.failures]
    assert verdicts.count(Verdict.CRASH) == 1, verdicts
    assert Verdict.NONDETERMINISTIC in verdicts


@pytest.mark.parametrize("keeps", [True, False])
def test_what_an_earlier_call_left_is_told(keeps: bool) -> None:
    text = kernel() + "\n\nVALUES = {}\n\ndef wrong(query, key, value):\n"
    if keeps:
        text += "    value = VALUES.setdefault((value.shape, value.dtype), value.clone())\n"
    text += "    return attention(query, key, value)" + ("\n" if keeps else " * 1.5\n")
    Path("wrong.py").write_text(text)
    ran = gate("wrong.py:wrong", "--dtype=float32", "--budget=300", "--seed=1", isolate=True)
    assert ran.code == 1
    for words in ("but not in a new process", "passes in a new process", "passes, by itself"):
        assert (words in ran.flat) == keeps
    assert not keeps or "Likely cause" not in ran.output


def test_a_new_process_that_cannot_start_hides_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def afresh(self: Worker, seconds: float) -> Worker:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(Worker, "afresh", afresh)
    Path("wrong.py").write_text(kernel(out="out.to(query.dtype) * 1.5"))
    ran = gate("wrong.py:attention", "--dtype=float32", "--budget=50", isolate=True)
    assert ran.code == 1
    assert "flashcheck replay" in ran.output


# -- 2: could not run ---------------------------------------------------------------------

FILES = {
    "broken.py": "import there_is_no_such_module\n",
    "raises.py": "raise RuntimeError('no licence')\n",
    "syntax.py": "def attention(query, key, value)\n    return query\n",
    "number.py": "attention = 3\n",
    "refuses.py": "def attention(query, key, value):\n    raise NotImplementedError('CUDA only')\n",
    "cannot.py": "def attention(query, key, value):\n    raise TypeError('bad dtype')\n",
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["no TARGET", "path/to/file.py:attention", "pyproject.toml"]),
        (["numpy_onlin"], ["numpy_onlin", "did you mean numpy_online"]),
        (["torch_sdpa[mth]"], ["mth", "did you mean math"]),
        (["gone.py:attention"], ["no such file: gone.py"]),
        (["rigth.py:attention"], ["no such file", "did you mean right.py"]),
        (["right.py:atention"], ["no 'atention'", "did you mean attention"]),
        (["right.py"], ["right.py:FUNCTION", "it defines attention"]),
        (["no.such.module:attention"], ["there is no module 'no'", "installed"]),
        (["broken.py:attention"], ["there_is_no_such_module", "broken.py:1"]),
        (["raises.py:attention"], ["RuntimeError: no licence", "raises.py:1"]),
        (["syntax.py:attention"], ["SyntaxError", "syntax.py:1"]),
        (["number.py:attention"], ["int object", "cannot be called"]),
        (["right.py:attention", "--dtype", "float33"], ["'float33'", "there are", "float32"]),
        (["right.py:attention", "--budget", "lots"], ["'lots'", "smoke, pr, nightly"]),
        (["right.py:attention", "--budget", "-5"], ["'-5'", "smoke, pr, nightly"]),
        (["right.py:attention", "--report", "pdf=r.pdf"], ["'pdf'", "json", "md", "junit"]),
        (["right.py:attention", "--report", "r.json"], ["FORMAT=PATH"]),
        (["right.py:attention", "--sede", "1"], ["--sede", "--seed"]),
        (["right.py:attention", "--seed", "one"], ["--seed", "integer"]),
        (
            ["refuses.py:attention"],
            ["every dtype was refused", "CUDA only", "--dtype", "float8 was not tried"],
        ),
        (["cannot.py:attention"], ["every dtype was refused", "bad dtype", "--dtype"]),
    ],
    ids=" ".join,
)
def test_could_not_run(arguments: list[str], words: list[str]) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)
    ran = gate(*arguments, "--quiet")
    assert ran.code == 2, ran.output
    assert_clear(ran, words)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
@pytest.mark.parametrize("isolate", [True, False])
def test_no_cuda(isolate: bool) -> None:
    ran = gate("right.py:attention", "--device", "cuda", "--quiet", isolate=isolate)
    assert ran.code == 2, ran.output
    assert_clear(ran, ["cuda", "--device cpu"])


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pyproject.toml", "[tool.flashcheck\n", ["cannot read pyproject.toml", "line 1"]),
        ("flashcheck.toml", "budget = \n", ["cannot read flashcheck.toml", "line 1"]),
        ("pyproject.toml", "[tool.flashcheck]\nbuget = 'pr'\n", ["'buget'", "mean 'budget'"]),
        ("flashcheck.toml", "zzz = 1\n", ["flashcheck.toml", "'zzz'", "there are kernels"]),
        ("flashcheck.toml", "seed = 'one'\n", ["flashcheck.toml", "seed cannot be 'one'"]),
        ("pyproject.toml", "[tool]\nflashcheck = 3\n", ["must be a table"]),
        ("flashcheck.toml", "dtype = ['float33']\n", ["'float33'", "float32"]),
        ("flashcheck.toml", "report = ['pdf=x']\n", ["'pdf'", "json"]),
        ("flashcheck.toml", "budget = 'lots'\n", ["'lots'", "smoke"]),
    ],
)
def test_configuration(name: str, text: str, words: list[str]) -> None:
    Path(name).write_text(text)
    ran = gate("right.py:attention", "--quiet")
    assert ran.code == 2, ran.output
    assert_clear(ran, words)


def assert_clear(ran: Ran, words: list[str]) -> None:
    """One statement of at most three lines has all of the words; there is no traceback."""
    assert "Traceback" not in ran.output
    statements = re.split(r"\n(?! )", ran.output.strip("\n"))
    fitting = [s for s in statements if all(w in " ".join(s.split()) for w in words)]
    assert fitting, f"nothing says {words}:\n{ran.output}"
    assert min(len(s.splitlines()) for s in fitting) <= 3, ran.output


# -- 3 and 130 ----------------------------------------------------------------------------


def test_float8_is_a_dtype_to_ask_for() -> None:
    ran = gate(
        "fp32_float8", "--dtype", "float8_e5m2", "--budget", "100", "--report", "json=r.json"
    )
    assert ran.code in (0, 3), ran.output
    (target,) = json.loads(Path("r.json").read_text())["targets"]
    assert list(target["results"]) == ["float8_e5m2"]


def test_too_small_a_budget_proves_nothing() -> None:
    ran = gate("right.py:attention", "--budget", "20", "--report", "json=r.json")
    assert ran.code == 3, ran.output
    assert "PROVES NOTHING" in ran.output
    assert "fewer than 5 checks" in ran.flat
    assert "larger --budget" in ran.flat
    data = json.loads(Path("r.json").read_text())
    json_report.validate(data)
    (target,) = data["targets"]
    assert sum(r["checks"] for r in target["results"].values()) == 20 + target["regressions"]


def test_interrupted(folder: Path) -> None:
    """Ctrl-C: what was found is saved, the reports are written and say that they are partial."""
    count = folder / "calls"
    slow = f"time.sleep(0.02); open({str(count)!r}, 'ab').write(b'.')"
    Path("slow.py").write_text(kernel(before=slow, out="(out * 1.01).to(query.dtype)"))
    reports = ["--report", "json=r.json", "--report", "md=r.md", "--report", "junit=r.xml"]
    command = ["gate", "slow.py:attention", "--budget", "nightly", "--no-color", *reports]
    with subprocess.Popen(
        [sys.executable, "-c", "from flashcheck.cli import main; main()", *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=outside(),
    ) as process:  # fmt: skip
        # The probe makes fewer calls than that in three dtypes, the search of one dtype more.
        while process.poll() is None and (not count.exists() or count.stat().st_size < 210):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "interrupted" in output
    assert "partial" in output
    data = json.loads(Path("r.json").read_text())
    json_report.validate(data)
    assert (data["exit_code"], data["partial"]) == (130, True)
    assert "partial" in Path("r.md").read_text().lower()
    assert Path("r.xml").is_file()
    (target,) = data["targets"]
    assert target["failures"], output
    for found in target["failures"]:
        assert examples.load(Path(".flashcheck/examples", f"{found['example_id']}.json"))


# -- seeds --------------------------------------------------------------------------------


def story(seed: int) -> list[Any]:
    """All that a run checks and finds."""
    heard: list[Any] = []

    def listen(event: Event) -> None:
        if isinstance(event, Checked):
            check = event.check
            line = (event.dtype, event.problem, event.config, check.property, check.verdict)
            heard.append((*line, check.ratio, check.message))

    result = flashcheck.gate(
        ["wrong.py:attention"], budget="90", seed=seed, isolate=False, listeners=[listen]
    )
    return [*heard, *(f.text for f in result.failures), result.reason]


def test_seeds() -> None:
    """A seed gives the same problems and verdicts; another gives others."""
    Path("wrong.py").write_text(kernel(late=1))
    first, again, other = story(5), story(5), story(6)
    assert first == again
    assert len(first) > 90
    problems, others = ({line[1] for line in run[:90]} for run in (first, other))
    assert len(problems & others) < len(problems) / 2


def test_failures_with_one_likely_cause_are_one(folder: Path) -> None:
    """Wrong features show in out, and in lse where out is right, as with one key."""
    recorder = Recorder()
    result = flashcheck.gate(
        ["fp32_stats+head_dim_rounded_down"], dtypes=["float32"], budget="300", seed=1,
        isolate=False, listeners=[recorder],
    )  # fmt: skip
    (cause,) = result.failures
    assert "kernels/faults/head_dim_rounded_down" in cause.text
    (told,) = recorder.summary().failures
    assert told.count > cause.count
    assert told.count == recorder.summary().targets[0].results["float32"].failed


IN_CI = """
    import hypothesis
    from click.testing import CliRunner
    from hypothesis.configuration import set_hypothesis_home_dir
    import flashcheck
    from flashcheck.cli import main
    from flashcheck.reporting.recorder import Recorder

    assert hypothesis.settings.default.derandomize, "Hypothesis did not notice the CI"
    heard = []
    listen, heard_by = Recorder.__call__, heard.append
    Recorder.__call__ = lambda self, event: (heard_by(event), listen(self, event))[1]
    for _ in range(2):
        heard.clear()
        flags = ["--no-isolate", "--budget", "30", "--dtype", "float32"]
        output = CliRunner().invoke(main, ["gate", "right.py:attention", *flags]).output
        print([line for line in output.splitlines() if line.startswith("seed ")][0])
        print("problems", hash(tuple(e.problem for e in heard if hasattr(e, "problem"))))
    """


def test_continuous_integration() -> None:
    """Hypothesis derandomizes in CI; the gate does not, and prints the seed that it drew."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(IN_CI)], env=outside() | {"CI": "true"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seeds = re.findall(r"^seed (\d+) ", done.stdout, re.MULTILINE)
    drawn = re.findall(r"^problems (-?\d+)$", done.stdout, re.MULTILINE)
    assert len(seeds) == len(set(seeds)) == 2, done.stdout
    assert len(drawn) == len(set(drawn)) == 2, done.stdout


# -- what is not tested -------------------------------------------------------------------


def head(ran: Ran) -> str:
    """The lines before the first failure, the table or the verdict, on one line."""
    start = next(i for i, line in enumerate(ran.lines) if "  on cpu" in line)
    end = next(i for i, line in enumerate(ran.lines) if i > start and line[:2] != "  ")
    return " ".join(" ".join(ran.lines[start:end]).split())


def test_hidden_options_come_first() -> None:
    text = "def attention(query, key, value, **options):\n"
    Path("hides.py").write_text(text + "    return (query @ key.mT).softmax(-1) @ value\n")
    ran = gate("hides.py:attention", "--budget", "20", "--dtype", "float32", "--report", "md=r.md")
    said = head(ran)
    assert said.startswith("hides.py:attention float32 on cpu not tested: every option")
    assert "declare them with flashcheck.Kernel(fn, options=" in said
    assert "not tested: lse: it is not returned" in said
    report = Path("r.md").read_text()
    assert "every option" in report
    assert "lse" in report


def test_refused_dtype_and_unnamed_options_come_first() -> None:
    refuse = "if query.dtype == torch.float16: raise TypeError('no half here')"
    Path("part.py").write_text(kernel(before=refuse))
    ran = gate("part.py:attention", "--budget", "20")
    said = head(ran)
    assert said.startswith("part.py:attention float32, bfloat16 on cpu")
    assert "not tested: enable_gqa, window_size, softcap" in said
    assert "block_table: the signature does not name them" in said
    assert "not tested: float16: refused (TypeError: no half here)" in said
    # In the quiet form too.
    quiet = gate("part.py:attention", "--budget", "20", "--quiet")
    assert "not tested: float16: refused" in quiet.flat


def test_dtypes_spread_evenly_in_any_number() -> None:
    counts: Counter[str] = Counter()

    def listen(event: Event) -> None:
        if isinstance(event, Checked) and not event.regression:
            counts[event.dtype] += 1

    chosen = ("float64", "float32", "float16", "bfloat16")
    assert set(chosen) <= set(DTYPES)
    flashcheck.gate(
        ["right.py:attention"], dtypes=chosen, budget="50", seed=0, isolate=False,
        listeners=[listen],
    )  # fmt: skip
    assert sorted(counts.values()) == [12, 12, 13, 13]
