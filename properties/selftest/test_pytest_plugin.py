"""The pytest plugin: the properties against a user's kernel, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from flashcheck.law import laws

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

KERNELS = """
    def right(query, key, value):
        q, k, v = query.double(), key.double(), value.double()
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        return (weights @ v).to(query.dtype)

    def wrong(query, key, value):
        return (right(query, key, value).double() * 1.1).to(query.dtype)
    """


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(textwrap.dedent(KERNELS))
    return tmp_path


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest as a user runs it who never saw this repository."""
    ours = ("PYTEST", "PYTHONPATH", "HYPOTHESIS", "FLASHCHECK")
    return subprocess.run(
        [str(Path(sys.executable).with_name("pytest")), "--color=no", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={n: text for n, text in os.environ.items() if not n.startswith(ours)},
    )  # fmt: skip


def properties(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_pytest(folder, "--pyargs", "flashcheck.properties", "-v", *arguments)


def outcomes(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Test id -> PASSED, FAILED, ..., of `pytest -v`."""
    found = re.findall(
        r"^\S*?(\w+\.py::\S+) (PASSED|FAILED|SKIPPED|ERROR)", done.stdout, re.MULTILINE
    )
    return dict(found)


def test_right_and_wrong(folder: Path) -> None:
    """Kernels and dtypes make one test each; the failing one says what is wrong, and on what."""
    targets = ["--flashcheck-kernel", "mine.py:right", "--flashcheck-kernel", "mine.py:wrong"]
    flags = ["--flashcheck-dtype", "bfloat16", "--flashcheck-seed", "3"]
    done = properties(folder, *targets, *flags, "-k", "agreement", "--junitxml", "junit.xml")
    assert done.returncode == 1, done.stdout
    assert outcomes(done) == {
        "agreement.py::test_agreement[mine.py:right-bfloat16]": "PASSED",
        "agreement.py::test_agreement[mine.py:wrong-bfloat16]": "FAILED",
    }
    assert re.search(r"CheckFailed: out\[0, 0, 0, 0\] is \S+ and should be", done.stdout)
    assert re.search(r"Problem: 1 query, 1 key, .*; q = .*; v = 1 everywhere", done.stdout)
    assert "kernel=<mine.py:wrong in bfloat16 on cpu>" in done.stdout
    suite = ET.parse(folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


def test_workers_and_laws_that_cannot_apply(folder: Path) -> None:
    """With xdist, all properties; those about options that the kernel lacks are skipped."""
    done = properties(
        folder, "--flashcheck-kernel", "mine.py:right", "--flashcheck-dtype",
        "float32,float16", "--flashcheck-budget", "4", "-n", "2", "--junitxml", "junit.xml", "-rs",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    suite = ET.parse(folder / "junit.xml").getroot().find("testsuite")
    assert suite is not None
    assert (suite.get("errors"), suite.get("failures")) == ("0", "0")
    cases = {case.get("name", ""): case for case in suite.iter("testcase")}
    skipped = {name for name, case in cases.items() if case.find("skipped") is not None}
    dtypes = ("float32", "float16")
    missing = {"gqa_repeated_heads", "causal_prefix", "poison_masked", "neutral_options"}
    missing |= {"split_independence", "sequence_independence", "cache", "nan_propagation"}
    missing |= {law.name for law in laws() if law.backward}
    assert skipped == {f"test_{name}[mine.py:right-{d}]" for name in missing for d in dtypes}
    assert len(cases) > 30
    assert "is about what mine.py:right does not take" in done.stdout


def test_unknown_kernel(folder: Path) -> None:
    target, said = "mine.py:rihgt", "the file has no 'rihgt'; did you mean right"
    done = properties(folder, "--flashcheck-kernel", target, "-k", "agreement", "--tb=short",
                      "--flashcheck-dtype", "float32")  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stdout
    assert "During handling" not in done.stdout
    section = re.split(r"^_+ ERROR .* _+$", done.stdout, flags=re.MULTILINE)[1]
    message = section.split("\n====")[0].strip().splitlines()
    assert len(message) == 1, done.stdout
    assert said in message[0]


def test_seed_and_budget(folder: Path) -> None:
    """The same seed draws the same problems, as many as the budget says; the default differs."""
    counting = """
        import atexit, hashlib
        seen = []

        def counted(query, key, value):
            seen.append(hashlib.sha256(query.float().numpy().tobytes()).hexdigest())
            return right(query, key, value)

        def write():
            with open("seen.txt", "a") as file:
                file.write(f"{len(seen)} {hashlib.sha256(repr(seen).encode()).hexdigest()}\\n")
        """
    (folder / "mine.py").write_text(textwrap.dedent(KERNELS) + textwrap.dedent(counting))
    script = """
        import mine, os, pytest, sys
        from flashcheck import worker

        class Here(worker.InProcess):
            def __init__(self, target, device=None, timeout=60.0):
                super().__init__(mine.counted, device)

        worker.Worker = Here
        for flags in (["3", "6"], ["3", "6"], ["4", "6"], ["3", "12"]):
            mine.seen.clear()
            # Imported anew, since Hypothesis decorates a function with settings but once.
            for name, module in list(sys.modules.items()):
                if f"{os.sep}properties{os.sep}" in (getattr(module, "__file__", "") or ""):
                    del sys.modules[name]
            code = pytest.main([
                "-q", "--pyargs", "flashcheck.properties", "-k", "agreement",
                "--flashcheck-kernel", "mine.py:counted", "--flashcheck-dtype", "float32",
                "--flashcheck-seed", flags[0], "--flashcheck-budget", flags[1],
            ])
            mine.write()
            assert code == 0, code
        """
    (folder / "script.py").write_text(textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=300,
        check=False, env={n: t for n, t in os.environ.items() if not n.startswith("PYTEST")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, again, other, more = (
        line.split() for line in (folder / "seen.txt").read_text().splitlines()
    )
    assert first == again
    assert first[1] != other[1]
    # The calls of the probe are the same in each.
    assert int(more[0]) - int(first[0]) == 6


def test_unknown_budget(folder: Path) -> None:
    done = run_pytest(folder, "--flashcheck-budget", "lots")
    assert done.returncode == 4
    assert "--flashcheck-budget: 'lots' is none of smoke, pr, nightly" in done.stderr


def test_other_projects_pay_nothing(folder: Path) -> None:
    """Where flashcheck is installed and not asked for, its plugin imports nothing heavy."""
    (folder / "test_other.py").write_text(
        textwrap.dedent(
            """
            import sys

            def test_imports(request):
                assert request.config.pluginmanager.hasplugin("flashcheck")
                heavy = {"torch", "numpy", "mpmath", "flashcheck.law", "flashcheck.worker"}
                assert not heavy & set(sys.modules)

            def test_hypothesis():
                assert "hypothesis" not in sys.modules
            """
        )
    )
    # Hypothesis brings a plugin of its own.
    done = run_pytest(folder, "-p", "no:hypothesispytest", "-q", "test_other.py")
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
