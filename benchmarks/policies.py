"""What other projects' tests accept, as policies, re-implemented from their description.

A policy says whether a kernel's `out` passes. It sees what such a test has: `golden`, the
result in float64; `ref`, golden in the kernel's dtype; `pt`, a plain implementation in the
kernel's dtype. All are float64 arrays of [B, Hq, Lq, Dv] that hold values of their dtypes.
Every comparison with NaN is false, so that NaN fails wherever a test compares.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flashcheck.formats import Array, Format


@dataclass(frozen=True, eq=False)
class Seen:
    """What a test compares."""

    format: Format
    golden: Array
    ref: Array
    pt: Array

    @property
    def half(self) -> bool:
        return self.format.precision < 24


Policy = Callable[[Array, Seen], bool]


def _close(out: Array, ref: Array, atol: float, rtol: float, share: float = 0.0) -> bool:
    """allclose, but for a share of the elements."""
    return bool((~(np.abs(out - ref) <= atol + rtol * np.abs(ref))).mean() <= share)


def _worst(a: Array, b: Array) -> float:
    return float(np.abs(a - b).max())


def fa2(out: Array, seen: Seen) -> bool:
    """flash-attention: twice the error of a plain implementation in the same dtype."""
    return _worst(out, seen.ref) <= 2 * _worst(seen.pt, seen.ref)


def fa3(out: Array, seen: Seen) -> bool:
    """flash-attention 3: as fa2, and twice what adding and taking away 0.3 costs."""
    r = seen.format.round
    slack = _worst(r(r(seen.ref + 0.3) - 0.3), seen.ref)
    return _worst(out, seen.ref) <= 2 * _worst(seen.pt, seen.ref) + 2 * slack


def torch_default(out: Array, seen: Seen) -> bool:
    """torch.testing.assert_close."""
    rtol = {11: 1e-3, 8: 1.6e-2, 24: 1.3e-6}.get(seen.format.precision, 1e-7)
    return _close(out, seen.ref, 1e-5, rtol)


def sdpa_fudge(out: Array, seen: Seen) -> bool:
    """torch's SDPA tests: the error of a plain implementation, with a floor (factor 2)."""
    return _worst(out, seen.golden) <= max(1e-5, 2 * _worst(seen.pt, seen.golden))


def flex_mean(out: Array, seen: Seen) -> bool:
    """FlexAttention: the mean error against a plain implementation's."""
    factor = 1.1 if seen.half else 10.0
    mean = np.abs(out - seen.golden).mean()
    return bool(mean <= factor * np.abs(seen.pt - seen.golden).mean())


def triton_tutorial(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 1e-2, 0.0)


def vllm(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 1.5e-2, 1e-2)


def flashinfer(out: Array, seen: Seen) -> bool:
    tolerance = 1e-2 if seen.format.precision == 8 else 1e-3
    return _close(out, seen.ref, tolerance, tolerance)


def flashinfer_ratio(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 1e-2, 1e-2, share=5e-5)


def xformers(out: Array, seen: Seen) -> bool:
    atol, rtol = {11: (4e-3, 4e-4), 8: (2e-2, 5e-3)}.get(seen.format.precision, (3e-4, 2e-5))
    return _close(out, seen.ref, atol, rtol)


def flashmla(out: Array, seen: Seen) -> bool:
    """DeepSeek's FlashMLA: elementwise absolute or relative, and the angle between them."""
    off = np.abs(out - seen.ref)
    near = (off < 8e-4) | (off / (np.abs(seen.ref) + 1e-6) < 2.01 / 128)
    return bool(near.all()) and _angle(out, seen.ref) <= 5e-6


def gym(out: Array, seen: Seen) -> bool:
    """attention-gym: twice the plain implementation's error and a bfloat16 eps of the largest."""
    slack = 2.0**-7 * float(np.abs(seen.golden).max())
    return _worst(out, seen.golden) <= 2 * (_worst(seen.pt, seen.golden) + slack)


def kernelbench(out: Array, seen: Seen) -> bool:
    tolerance = 1e-2 if seen.half else 1e-4
    return _close(out, seen.ref, tolerance, tolerance)


def tilelang(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 1e-2, 1e-2, share=1e-2)


def cosine(out: Array, seen: Seen) -> bool:
    """The angle alone, as tests of quantized kernels take it."""
    return _angle(out, seen.ref) <= 1e-2


def _angle(a: Array, b: Array) -> float:
    """1 - 2 <a, b> / (|a|^2 + |b|^2); 0 where both are 0."""
    size = float((a * a).sum() + (b * b).sum())
    return 1 - 2 * float((a * b).sum()) / size if size else 0.0


POLICIES: dict[str, Policy] = {
    "flash-attention": fa2,
    "flash-attention 3": fa3,
    "torch.testing.assert_close": torch_default,
    "torch SDPA tests": sdpa_fudge,
    "FlexAttention": flex_mean,
    "Triton tutorial": triton_tutorial,
    "vLLM": vllm,
    "FlashInfer": flashinfer,
    "FlashInfer, ratio": flashinfer_ratio,
    "xFormers": xformers,
    "FlashMLA": flashmla,
    "attention-gym": gym,
    "KernelBench": kernelbench,
    "tilelang": tilelang,
    "cosine": cosine,
}
