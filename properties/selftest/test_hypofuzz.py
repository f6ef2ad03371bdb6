"""HypoFuzz runs the properties, and pytest replays what it found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("hypofuzz", reason="HypoFuzz has an environment of its own: CONTRIBUTING.md")

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PROPERTY = [
    str(ROOT / "properties" / "agreement.py"), "--flashcheck-kernel",
    "numpy_online+acc_not_rescaled", "--flashcheck-dtype", "float32", "--flashcheck-no-isolate",
]  # fmt: skip


def environment() -> dict[str, str]:
    """On CI, and as far as it sees under pytest, Hypothesis keeps no database."""
    ours = ("CI", "GITHUB_", "TF_BUILD", "PYTEST", "HYPOTHESIS")
    return {name: text for name, text in os.environ.items() if not name.startswith(ours)}


def replayed(folder: Path) -> bool:
    """Whether pytest finds a failure when all that it draws is the simplest problem."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *PROPERTY, "--flashcheck-budget", "1"],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout
    return "CheckFailed" in done.stdout


def test_finds_a_fault(tmp_path: Path) -> None:
    assert not replayed(tmp_path)
    command = [str(BIN / "hypothesis"), "fuzz", "--no-dashboard", "-n", "1", "--", *PROPERTY]
    with (tmp_path / "log.txt").open("w") as log:
        fuzzer = subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=log, stderr=log, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not replayed(tmp_path):
            assert fuzzer.poll() is None, (tmp_path / "log.txt").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log.txt").read_text()
    finally:
        # It runs forever, and so do its children without it.
        os.killpg(fuzzer.pid, signal.SIGKILL)
        fuzzer.wait()
