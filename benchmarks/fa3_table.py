"""FlashAttention-3's published error table, made again with the shipped kernels.

    python benchmarks/fa3_table.py > reports/bound/fa3_table.md

The paper (arXiv 2407.08608, section 4.3) draws the entries of q, k and v from a standard normal
and adds, to one in a thousand, another of standard deviation 10; and gives the root mean square
error against float64. Neither the number of tokens is known here nor whether the reference took
the inputs before or after they were rounded to the kernel's dtype: both are given, for 2 batches
of 8 heads of 2,048 tokens and 64 channels. Only ratios of kernels can be compared: the more keys,
the smaller output and error are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import torch
from page import head

from flashcheck.loading import load

BATCH, HEADS, TOKENS, DIM = 2, 8, 2048, 64
PAPER = {
    "everything in float16": 3.2e-4,
    "fp32_stats in float16 (FlashAttention-2 and -3)": 1.9e-4,
}
Kernel = Callable[..., torch.Tensor]


def draw(generator: torch.Generator) -> torch.Tensor:
    """[HEADS, TOKENS, DIM] of one batch in float64."""
    shape = (HEADS, TOKENS, DIM)
    normal = torch.randn(shape, generator=generator, dtype=torch.float64)
    outlier = 10 * torch.randn(shape, generator=generator, dtype=torch.float64)
    chosen = torch.rand(shape, generator=generator, dtype=torch.float64) < 0.001
    return normal + torch.where(chosen, outlier, 0.0)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / math.sqrt(DIM), -1) @ v


def everything(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The standard form, every intermediate in the dtype."""
    s = q @ k.mT / math.sqrt(DIM)
    p = torch.exp(s - s.amax(-1, keepdim=True))
    return (p / p.sum(-1, keepdim=True)) @ v


def shipped(name: str) -> Kernel:
    kernel, _ = load(name)

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        result = kernel.fn(q[None], k[None], v[None])
        return (result[0] if isinstance(result, tuple) else result)[0]

    return run


def main() -> int:
    kernels: dict[str, tuple[torch.dtype, Kernel]] = {}
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        kernels[f"everything in {name}"] = dtype, everything
        stats = "(FlashAttention-2 and -3)" if dtype == torch.float16 else ""
        kernels[f"fp32_stats in {name} {stats}".strip()] = dtype, shipped("fp32_stats")
        kernels[f"torch_sdpa[flash] in {name}"] = dtype, shipped("torch_sdpa[flash]")
    square = {name: [0.0, 0.0] for name in kernels}
    for batch in range(BATCH):
        generator = torch.Generator().manual_seed(batch)
        q, k, v = (draw(generator) for _ in range(3))
        for name, (dtype, kernel) in kernels.items():
            a, b, c = (t.to(dtype) for t in (q, k, v))
            out = kernel(a, b, c).double()
            references = exact(a.double(), b.double(), c.double()), exact(q, k, v)
            for which, reference in enumerate(references):
                square[name][which] += float(((out - reference) ** 2).mean()) / BATCH
    head(__doc__)
    print("Root mean square error against float64 of the inputs")
    print("\n| kernel | as the kernel gets them | before rounding | in the paper |")
    print("|---|---:|---:|---:|")
    error = {name: [math.sqrt(total) for total in totals] for name, totals in square.items()}
    for name, (rounded, drawn) in error.items():
        print(f"| {name} | {rounded:.2e} | {drawn:.2e} | {PAPER.get(name, '')} |")
    first, second = (error[name] for name in PAPER)
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    published = PAPER["everything in float16"] / min(PAPER.values())
    print(f"\nIn float16, float32 statistics are {ratios[0]:.1f} times as accurate;")
    print(f"{ratios[1]:.1f} times where the error of rounding the inputs counts too;")
    print(f"{published:.1f} times in the paper.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
