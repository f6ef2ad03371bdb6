"""How fast the gate is on torch's attention, and how much memory it takes.

    python benchmarks/gate_speed.py

Runs the default budget in three dtypes and prints problems and checks a second, and the
largest resident memory of all its processes together. Machines are noisy: run it on a quiet one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = "torch.nn.functional:scaled_dot_product_attention"


def resident(pid: int) -> int:
    """Resident bytes of a process and all below it (Linux)."""
    total = 0
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            total += int(line.split()[1]) * 1024
    return total + sum(resident(int(child)) for child in children.split())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "run.json"
        command = [
            *(sys.executable, "-m", "flashcheck.cli"),
            *("gate", TARGET, "--dtype", "float32,float16,bfloat16", "-q"),
            *("--report", f"json={report}", "--examples", folder),
        ]
        start, peak = time.monotonic(), 0
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            peak = max(peak, resident(process.pid))
            time.sleep(0.1)
        seconds = time.monotonic() - start
        targets = json.loads(report.read_text(encoding="utf-8"))["targets"]
    results = [r for t in targets for r in t["results"].values()]
    checks = sum(r["checks"] for r in results)
    problems = sum(r["by_property"]["agreement"]["checks"] for r in results)
    print(f"exit {process.returncode}  {seconds:.1f} s with start-up")
    print(
        f"{problems / seconds:.0f} problems/s  {checks / seconds:.0f} checks/s  ({checks} checks)"
    )
    print(f"peak memory of all processes {peak / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
