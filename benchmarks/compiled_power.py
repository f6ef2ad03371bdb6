"""Compiled Triton faults on GPUs: the kill matrix of the Triton kernels, 20 seeds

    python benchmarks/compiled_power.py --trials trials.jsonl --seconds 600
    python benchmarks/compiled_power.py --trials trials.jsonl > reports/h200/power_compiled.md

The first command appends the trials of cells (a fault in a kernel and a dtype in which it has a
witness) that the file lacks until the time is up, and may be repeated; the second renders the
file, on the same machine, which the page names. `--kernel K[,K]` (triton_flash) and `--fault
F[,F]` choose cells in both. A search compiles a kernel for each combination of block sizes, head
sizes and options that it meets, which takes seconds: so what the kernel takes is probed once,
interpreted, instead of for each fault.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from flashcheck.power import page
from flashcheck.power.trial import Trial, trials
from flashcheck.power.witness import witnesses
from flashcheck.probe import probe
from flashcheck.strategies import Space
from flashcheck.worker import Worker

Cell = tuple[str, str, str]


def spaces(kernel: str) -> dict[str, Space]:
    """What the kernel takes, in the sizes of a compiled one."""
    with Worker(kernel, "cpu") as runner:
        found = probe(runner, runner.start(), None).spaces
    drawn = Space()
    sizes = {"work": drawn.work, "max_length": drawn.max_length, "max_heads": drawn.max_heads}
    return {dtype: replace(space, **sizes) for dtype, space in found.items()}


def cell(at: Cell, seeds: range, device: str, known: Mapping[str, Space]) -> list[Trial]:
    kernel, fault, dtype = at
    return list(trials(kernel, fault, seeds, (dtype,), device=device, spaces=known))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--kernel", default="triton_flash", help="K[,K]")
    parser.add_argument("--fault", help="F[,F]: these alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    lines = args.trials.read_text().splitlines() if args.trials.exists() else []
    found = [Trial(**json.loads(line)) for line in lines]
    kernels = args.kernel.split(",")
    if unknown := set(kernels) - {w.kernel for w in witnesses()}:
        parser.error(f"no witness: {', '.join(sorted(unknown))}")
    wanted = {(w.kernel, w.fault, w.problem.dtype) for w in witnesses() if w.kernel in kernels}
    command = f"python benchmarks/compiled_power.py --trials {args.trials.name}"
    command += f" --kernel {args.kernel}"
    if args.fault:
        names = args.fault.split(",")
        if unknown := set(names) - {fault for _, fault, _ in wanted}:
            parser.error(f"no witness in {args.kernel}: {', '.join(sorted(unknown))}")
        wanted = {at for at in wanted if at[1] in names}
        command += f" --fault {args.fault}"
    done = [t for t in found if (t.kernel, t.fault, t.dtype) in wanted]
    missing = sorted(wanted - {(t.kernel, t.fault, t.dtype) for t in done})
    if not args.seconds:
        left = [f"{len(missing)} of {len(wanted)} cells were not searched"] if missing else []
        print(page.markdown(done, left, command), end="")
        return
    end = time.monotonic() + args.seconds
    known = {kernel: spaces(kernel) for kernel in kernels}
    pool = ProcessPoolExecutor(args.jobs, get_context("spawn"))
    devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    tasks = [
        pool.submit(cell, at, range(args.seeds), devices[i % len(devices)], known[at[0]])
        for i, at in enumerate(missing)
    ]
    with args.trials.open("a") as file:
        for task in as_completed(tasks):
            file.writelines(json.dumps(asdict(trial)) + "\n" for trial in task.result())
            file.flush()
            if time.monotonic() > end:
                os._exit(0)  # what is still being searched is not waited for


if __name__ == "__main__":
    main()
