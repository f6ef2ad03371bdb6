"""What other projects' tests accept, as policies, re-implemented from their description.

A policy says whether a kernel's `out` passes. It sees what such a test has: `golden`, the
result in float64; `ref`, golden in the kernel's dtype; `pt`, a plain implementation in the
kernel's dtype. All are float64 arrays of [B, Hq, Lq, Dv] that hold values of their dtypes. A few
tests judge lse [B, Hq, Lq] as well: LSE_POLICIES.
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
    abs_out: Array | None = None  # sum over the keys of P |v|, exactly

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


def aiter(out: Array, seen: Seen) -> bool:
    """aiter: as flash-attention, with a floor."""
    return _worst(out, seen.ref) <= max(2 * _worst(seen.pt, seen.ref), 0.01)


def aiter_ratio(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 1e-2, 1e-2, share=5e-2)


def flex_mean_newer(out: Array, seen: Seen) -> bool:
    """FlexAttention, a newer version: the two mean errors are close to each other."""
    factor = 1.1 if seen.half else 10.0
    plain = np.abs(seen.pt - seen.golden).mean()
    return bool(abs(np.abs(out - seen.golden).mean() - plain) <= 1e-7 + factor * plain)


def flashinfer_mse(out: Array, seen: Seen) -> bool:
    """FlashInfer's float8 tests."""
    return bool(np.square(out - seen.ref).mean() < 1.0)


def per_element(out: Array, seen: Seen) -> bool:
    """vLLM's derivation before it is collapsed to one number: u (sum of P |v|) + u |out|."""
    assert seen.abs_out is not None
    u = seen.format.unit_roundoff
    return bool((np.abs(out - seen.golden) <= u * (seen.abs_out + np.abs(seen.golden))).all())


def jax_nn(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 1e-2, 1e-2)


def jax_pallas(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 5e-2, 1e-7)


def jax_mosaic(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 2e-3, 1e-3)


def jax_splash(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 3e-3, 3e-3)


def robust_kbench(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 1e-5, 1e-5)


def backendbench(out: Array, seen: Seen) -> bool:
    """BackendBench: NaN passes where the reference is NaN."""
    both = np.isnan(out) & np.isnan(seen.ref)
    return _close(np.where(both, 0, out), np.where(both, 0, seen.ref), 1e-2, 1e-2)


def tritonbench(out: Array, seen: Seen) -> bool:
    return _close(out, seen.ref, 2e-2, 1e-2)


def sglang(out: Array, seen: Seen) -> bool:
    """sglang's grouped decoding: the cosine, and an absolute error."""
    size = float(np.sqrt((out * out).sum() * (seen.ref * seen.ref).sum()))
    aligned = size == 0 or float((out * seen.ref).sum()) / size > 0.99
    return aligned and _close(out, seen.ref, 3e-2, 1e-5)


def array_api(out: Array, seen: Seen) -> bool:
    """array-api-tests, whose standard asks for no accuracy."""
    off = np.abs(out - seen.ref)
    return bool(((off <= 1) | (off <= 0.25 * np.abs(seen.ref))).all())


MORE_POLICIES: dict[str, Policy] = {
    "aiter": aiter,
    "aiter, ratio": aiter_ratio,
    "FlexAttention, newer": flex_mean_newer,
    "FlashInfer, MSE": flashinfer_mse,
    "vLLM's derivation, per element": per_element,
    "JAX nn": jax_nn,
    "JAX Pallas": jax_pallas,
    "JAX Mosaic": jax_mosaic,
    "JAX splash": jax_splash,
    "robust-kbench": robust_kbench,
    "BackendBench": backendbench,
    "tritonbench": tritonbench,
    "sglang": sglang,
    "array-api-tests": array_api,
}


def _lse_close(lse: Array, exact: Array, atol: float, rtol: float) -> bool:
    with np.errstate(invalid="ignore"):
        near = np.abs(lse - exact) <= atol + rtol * np.abs(exact)
    return bool(((lse == exact) | (near & np.isfinite(exact))).all())


def flashmla_lse(lse: Array, exact: Array) -> bool:
    finite = np.isfinite(exact)
    off = np.abs(lse[finite] - exact[finite])
    near = (off < 1e-6) | (off / (np.abs(exact[finite]) + 1e-6) < 8.01 / 65536)
    return bool((lse[~finite] == exact[~finite]).all() and near.all())


LSE_POLICIES: dict[str, Callable[[Array, Array], bool]] = {
    "xFormers": lambda lse, exact: _lse_close(lse, exact, 2e-4, 1e-5),
    "FlashMLA": flashmla_lse,
    "JAX nn": lambda lse, exact: _lse_close(lse, exact, 1e-2, 1e-2),
    "JAX Mosaic": lambda lse, exact: _lse_close(lse, exact, 2e-3, 1e-3),
    "JAX splash": lambda lse, exact: _lse_close(lse, exact, 1e-3, 1e-3),
}
"""Whether a kernel's lse passes, beside the exact one; -inf must be -inf."""
