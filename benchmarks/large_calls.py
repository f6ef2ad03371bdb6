"""Calls that are too large for the CPU: every row on the GPU, the verdict on the CPU.

    python benchmarks/large_calls.py > reports/h200/large_calls.md

torch's scaled_dot_product_attention on a CUDA device, bfloat16, judged by `assert_within_bound`:
the scores of every row are evaluated in float64 on the device, and the bound decides over 64 rows,
half of them the worst. Then one element of one row is moved by eight times the bound on it, which
has to be found wherever it is. Scores per second are those of the float64 tier on the device
against the CPU's one core, on the same rows.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from page import head
from torch.nn.functional import scaled_dot_product_attention

import flashcheck
from flashcheck.bounds import bound
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle import device, float64
from flashcheck.oracle.rows import parts

SHAPES = (
    # B, Hq, Hkv, Lq, Lk, D
    (4, 32, 8, 4096, 4096, 128),
    (1, 8, 1, 4096, 131_072, 128),
    (64, 32, 8, 1, 8192, 128),
)


def call(shape: tuple[int, ...]) -> tuple[Inputs, torch.Tensor]:
    b, hq, hkv, lq, lk, d = shape
    random = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(b, h, n, d, generator=random, device="cuda").bfloat16()
        for h, n in ((hq, lq), (hkv, lk), (hkv, lk))
    )
    options = {"is_causal": lq == lk, "enable_gqa": hq != hkv}
    out = scaled_dot_product_attention(q, k, v, **options)
    return flashcheck.inputs_of(q, k, v, **options), out


def row(shape: tuple[int, ...]) -> str:
    x, out = call(shape)
    start = time.perf_counter()
    check = flashcheck.assert_within_bound(out, x)
    seconds = time.perf_counter() - start
    b, hq, _, lq, lk, _ = shape
    # Nothing about this row is special.
    moved = (b // 2, hq // 3, lq // 5)
    ((_, part),) = parts(x, [moved])
    at = float64.attention(part)
    allowed = bound(part, at, Contract(), "cuda").out[0, 0, 0, 7]
    out[(*moved, 7)] += 8 * allowed
    try:
        flashcheck.assert_within_bound(out, x)
        found = "no"
    except flashcheck.CheckFailed as failed:
        worst = failed.check.worst
        found = "yes" if worst is not None and worst.index[:3] == moved else "another row"
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for each in device.parts(x, "cuda"):
        each.lse.cpu()
    scan = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() / 2**30
    some = [(0, 0, i) for i in range(min(lq, 16))]
    start = time.perf_counter()
    for _, cut in parts(x, some):
        float64.attention(cut)
    cpu = (time.perf_counter() - start) / (len(some) * lk)
    scores = b * hq * lq * lk
    cells = (
        " x ".join(map(str, shape)), f"{scores:.2g}", f"{check.verdict.name}, {check.ratio:.2g}",
        f"{seconds:.0f}", f"{scan:.1f}", f"{peak:.1f}", f"{cpu * scores / scan:,.0f}", found,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    head(__doc__)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NumPy {np.__version__}.\n")
    print(
        "| B x Hq x Hkv x Lq x Lk x D | scores | verdict, error / bound | seconds in all | on the "
        f"device | GiB there | device / CPU core | moved element found |\n{'|---' * 8}|"
    )
    for shape in SHAPES:
        print(row(shape), flush=True)
    wrong = device.faults("cuda")
    print(f"\nSelf-check of float64 on the device: {'; '.join(wrong) or 'as assumed'}.")


if __name__ == "__main__":
    main()
