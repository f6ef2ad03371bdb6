"""float8: what factors by block and incoherent processing bring.

    python benchmarks/float8.py > reports/float8.md

Root mean square error of `fp32_float8` in e4m3, for 2 batches of 8 heads of 2,048 tokens and 64
channels. Inputs are rounded to float8 with a factor for the tensor, for each head, or for each
block of 16 queries or 32 keys, and q and k are rotated before or are not (`kernels/quantization`,
`kernels/hadamard`). *All* is the error against float64 of what was drawn, *the kernel's* that
against float64 of what the kernel was given. The data: *normal*; *entries*, FlashAttention-3's
recipe (arXiv 2407.08608, section 4.3), which adds to one entry in a thousand another normal
number of standard deviation 10; *channels*, where the same 2 of 64 channels of q and k are 10 times
as large, as in language models. *On tensor cores* is `triton_float8`, where there is a GPU.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib import import_module
from math import sqrt

import torch
from fa3_table import BATCH, DIM, HEADS, TOKENS, draw, exact
from page import head

from flashcheck.loading import load

KERNELS = "flashcheck.kernels"
hadamard = import_module(f"{KERNELS}.hadamard")
quantization = import_module(f"{KERNELS}.quantization")
float8 = import_module(f"{KERNELS}.fp32_float8")
E4M3 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Way:
    """Of rounding to float8: what shares a factor, whether q and k are rotated, which kernel."""

    per: str
    rotated: bool
    kernel: str = "fp32_float8"


WAYS = {
    "a factor per tensor": Way("tensor", False),
    "a factor per head": Way("head", False),
    "a factor per block": Way("block", False),
    "per tensor, rotated": Way("tensor", True),
    "per block, rotated (FlashAttention-3)": Way("block", True),
    "the same, P not rounded to float8": Way("block", True, "fp32_float8[bfloat16_p]"),
    "the same, P not enlarged": Way("block", True, "fp32_float8+p_not_enlarged"),
}
ON_GPU = {
    "a factor per tensor, on tensor cores": Way("tensor", False, "triton_float8"),
    "per block, rotated, on tensor cores": Way("block", True, "triton_float8"),
}
if torch.cuda.is_available():
    WAYS |= ON_GPU
PAPER = {
    "a factor per tensor": 2.4e-2,
    "a factor per block": 2.4e-2,
    "per tensor, rotated": 9.3e-3,
    "per block, rotated (FlashAttention-3)": 9.1e-3,
}
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def normal(generator: torch.Generator) -> Tensors:
    q, k, v = torch.randn(3, HEADS, TOKENS, DIM, generator=generator, dtype=torch.float64)
    return q, k, v


def entries(generator: torch.Generator) -> Tensors:
    return draw(generator), draw(generator), draw(generator)


def channels(generator: torch.Generator) -> Tensors:
    q, k, v = normal(generator)
    size = torch.ones(DIM, dtype=torch.float64)
    size[[5, 40]] = 10
    return q * size, k * size, v


DATA = {"normal": normal, "entries": entries, "channels": channels}


def run(way: Way, drawn: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The output on one batch, and float64's on what the kernel was given."""
    q, k, v = (x[None] for x in drawn)
    if way.rotated:
        signs = hadamard.random_signs(DIM)
        q, k = hadamard.rotated(q, signs), hadamard.rotated(k, signs)
    blocks = (float8.DESCALE_M, float8.DESCALE_N, float8.DESCALE_N)
    made = [
        quantization.quantized(x, E4M3, way.per, n) for x, n in zip((q, k, v), blocks, strict=True)
    ]
    (q8, a), (k8, b), (v8, c) = made
    kernel, _ = load(way.kernel)
    on_gpu = way in ON_GPU.values()
    options = {} if on_gpu else {**(kernel.configs or {})["64x32"], "BLOCK_M": 256}
    named = {"query": q8, "key": k8, "value": v8, "q_descale": a, "k_descale": b, "v_descale": c}
    out, _ = kernel.fn(**{k: x.cuda() if on_gpu else x for k, x in named.items()}, **options)
    given = (quantization.restored(x, f, n)[0] for (x, f), n in zip(made, blocks, strict=True))
    return out[0].cpu().double(), exact(*given)


def main() -> int:
    square = {(name, data): [0.0, 0.0] for name in WAYS for data in DATA}
    for data, recipe in DATA.items():
        for batch in range(BATCH):
            drawn = recipe(torch.Generator().manual_seed(batch))
            wanted = exact(*drawn)
            for name, way in WAYS.items():
                out, given = run(way, drawn)
                for which, reference in enumerate((wanted, given)):
                    square[name, data][which] += float(((out - reference) ** 2).mean()) / BATCH
    error = {at: [sqrt(total) for total in totals] for at, totals in square.items()}
    head(__doc__)
    print("| | " + " | ".join(f"{data}: all | the kernel's" for data in DATA), end="")
    print(" | the paper's, of entries |")
    print("|---|" + "---:|" * (2 * len(DATA) + 1))
    for name in WAYS:
        cells = [f"{e:.2e}" for data in DATA for e in error[name, data]]
        print(f"| {name} | {' | '.join(cells)} | {PAPER.get(name, '')} |")
    plain, _, block, rotated, both, *_ = WAYS
    print("\nThe error of a factor per tensor, over that of\n")
    print("| | " + " | ".join(DATA) + " | in the paper |")
    print("|---|" + "---:|" * (len(DATA) + 1))
    for name in (block, rotated, both):
        gains = [f"{error[plain, data][0] / error[name, data][0]:.2f}" for data in DATA]
        print(f"| {name} | {' | '.join(gains)} | {PAPER[plain] / PAPER[name]:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
