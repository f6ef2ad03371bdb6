"""Offsets beyond 2^31 elements, and more programs than a grid's axis, on a GPU

    python benchmarks/far_offsets.py > reports/h200/far_offsets.md

Tensors whose batches, heads or rows lie 2^31 elements and more apart, and an output that is so
large, in bfloat16. An index of 32 bits wraps there. What the kernel gives at the far end is judged
by `assert_within_bound`; "wrapped" is the same call judged against the tensors that a wrapped
index would read, which has to fail, or the figure beside it would say nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from page import head

import flashcheck
from flashcheck.loading import load

KERNELS = ("triton_flash", "triton_decode", "torch_sdpa")
FAR = 1 << 31
D = 128
PROGRAMS = 65_536 + 8

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Call:
    """Tensors of a call; `far` picks the batches that are judged, `near` what lies 2^32 or
    2^31 elements before them, None where nothing does."""

    name: str
    tensors: Tensors
    far: slice
    near: slice | None


def strided(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> Call:
    """q, k and v side by side in one buffer, with such strides."""
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    width = 1 << 16
    buffer = torch.zeros(last + 3 * width, dtype=torch.bfloat16, device="cuda")
    q, k, v = (buffer[i * width :].as_strided(shape, strides) for i in range(3))
    random = torch.Generator("cuda").manual_seed(0)
    for tensor in (q, k, v):
        tensor.copy_(torch.randn(shape, generator=random, device="cuda"))
    batches = shape[0] > 1
    return Call(name, (q, k, v), slice(-1, None), slice(0, 1) if batches else None)


def calls() -> list[Callable[[], Call]]:
    return [
        lambda: strided("batches 2^31 apart", (2, 2, 64, D), (FAR, 64 * D, D, 1)),
        lambda: strided("heads 2^31 apart", (1, 2, 64, D), (0, FAR, D, 1)),
        lambda: strided("rows 2^28 apart", (1, 1, 17, D), (0, 0, FAR // 8, 1)),
        many_programs,
    ]


def many_programs() -> Call:
    """Batch x heads beyond 65,535, and an output beyond 2^31 elements."""
    random = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(PROGRAMS, 1, n, D, generator=random, device="cuda", dtype=torch.bfloat16)
        for n in (260, 16, 16)
    )
    assert q.numel() > FAR
    return Call("65,544 x 260 queries", (q, k, v), slice(-8, None), slice(0, 8))


def judged(out: object, call: Call, at: slice) -> str:
    """How far the far end of `out` is from attention on the tensors at `at`."""
    result = out[0] if isinstance(out, tuple) else out
    assert isinstance(result, torch.Tensor)
    try:
        check = flashcheck.assert_within_bound(
            result[call.far], flashcheck.inputs_of(*(t[at] for t in call.tensors))
        )
    except flashcheck.CheckFailed as failed:
        return f"{failed.check.verdict.name}, {failed.check.ratio:.3g}"
    return f"{check.verdict.name}, {check.ratio:.2g}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kernels", default=",".join(KERNELS))
    args = parser.parse_args()
    head(__doc__)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}.\n")
    print("| kernel | call | verdict, error / bound | wrapped |\n|---|---|---|---|")
    for make in calls():
        call = make()
        for kernel in args.kernels.split(","):
            out = load(kernel)[0].fn(*call.tensors)
            torch.cuda.synchronize()
            there = judged(out, call, call.far)
            wrapped = "-" if call.near is None else judged(out, call, call.near)
            print(f"| {kernel} | {call.name} | {there} | {wrapped} |", flush=True)
            del out  # gigabytes
        del call
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
