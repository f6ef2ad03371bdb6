"""Every kernel against the definition in float64, on a handful of problems.

A coarse check that a kernel computes attention at all; the gate is the judge.
"""

from __future__ import annotations

import importlib
import inspect
import math
from typing import Any

import pytest
import torch

import flashcheck
from flashcheck.formats import DTYPES, FORMATS
from flashcheck.kernel import Kernel
from flashcheck.masks import Mask
from flashcheck.problem import Problem
from flashcheck.verdict import Verdict


def _kernels() -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for name in ("numpy_naive", "numpy_online", "fp32_stats", "torch_sdpa", "extremal"):
        module = importlib.import_module(f"flashcheck.kernels.{name}")
        found[name] = module.kernel
        for variant, kernel in getattr(module, "variants", {}).items():
            if variant not in ("efficient", "cudnn"):  # no CPU code
                found[f"{name}[{variant}]"] = kernel
    return found


KERNELS = _kernels()
INF = math.inf


_SLOPES = torch.tensor([0.5, -0.125, 0.0625])
_SINKS = torch.tensor([-3.0, 0.5, 20.0])


def _problems() -> dict[str, tuple[dict[str, int], dict[str, Any]]]:
    """Shapes and options; a mask is drawn by the test."""
    return {
        "one": ({"Lq": 1, "Lk": 1, "D": 1}, {}),
        "ragged": ({"B": 2, "Lq": 17, "Lk": 67, "D": 24}, {}),
        "long": ({"Lq": 5, "Lk": 300, "D": 16}, {}),
        "late maximum": ({"Lq": 17, "Lk": 133, "D": 16, "ramp": 1}, {}),
        "all scores negative": ({"Lq": 17, "Lk": 70, "D": 16, "down": 1}, {}),
        "wide v": ({"Lq": 9, "Lk": 33, "D": 8, "Dv": 20}, {}),
        "causal": ({"Lq": 40, "Lk": 40, "D": 16}, {"is_causal": True}),
        "causal, one past a block": ({"Lq": 65, "Lk": 65, "D": 16}, {"is_causal": True}),
        "causal, few queries": ({"Lq": 9, "Lk": 70, "D": 16}, {"is_causal": True}),
        "causal, few keys": ({"Lq": 70, "Lk": 9, "D": 16}, {"is_causal": True}),
        "grouped": ({"H": 6, "Hkv": 2, "Lq": 9, "Lk": 40, "D": 16}, {"enable_gqa": True}),
        "negative scale": ({"Lq": 9, "Lk": 40, "D": 16}, {"scale": -0.5}),
        "scale 0": ({"Lq": 9, "Lk": 40, "D": 16}, {"scale": 0.0}),
        "no key": ({"Lq": 9, "Lk": 0, "D": 16}, {}),
        "no key, causal": ({"Lq": 9, "Lk": 0, "D": 16}, {"is_causal": True}),
        "bool": ({"B": 2, "Lq": 20, "Lk": 90, "D": 16}, {"mask": "bool"}),
        "bool, wide": ({"B": 2, "Lq": 20, "Lk": 90, "D": 16}, {"mask": "bool4"}),
        "bias": ({"Lq": 20, "Lk": 90, "D": 16}, {"mask": "bias"}),
        "bias in float32": ({"Lq": 20, "Lk": 90, "D": 16}, {"mask": "float32"}),
        "window": ({"Lq": 90, "Lk": 130, "D": 16}, {"window_size": (20, 3)}),
        "window of one key": ({"Lq": 40, "Lk": 40, "D": 16}, {"window_size": (0, 0)}),
        "window, few keys": ({"Lq": 40, "Lk": 20, "D": 16}, {"window_size": (5, -1)}),
        "cap": ({"Lq": 9, "Lk": 70, "D": 16}, {"softcap": 0.7, "mask": "float32"}),
        "ALiBi": ({"H": 3, "Lq": 9, "Lk": 70, "D": 16}, {"alibi_slopes": _SLOPES}),
        "sinks": ({"H": 3, "Lq": 40, "Lk": 20, "D": 16}, {"sinks": _SINKS, "window_size": (2, 0)}),
        "splits": ({"Lq": 40, "Lk": 130, "D": 16, "ramp": 1}, {"num_splits": 5}),
        "more splits than keys": ({"Lq": 4, "Lk": 3, "D": 16}, {"num_splits": 7}),
        "all of them": (
            {"B": 2, "H": 3, "Lq": 40, "Lk": 90, "D": 16},
            {
                "window_size": (50, 9),
                "softcap": 2.0,
                "alibi_slopes": _SLOPES,
                "sinks": _SINKS,
                "num_splits": 3,
                "mask": "bias",
            },
        ),
    }


PROBLEMS = _problems()


def _mask(kind: str, b: int, h: int, lq: int, lk: int, dtype: torch.dtype) -> torch.Tensor:
    """Row 0 sees no key, row 1 only the last, row 2 all but a first block."""
    g = torch.Generator().manual_seed(3)
    seen = torch.rand((b, h, lq, lk) if kind == "bool4" else (lq, lk), generator=g) < 0.7
    seen[..., 0, :] = False
    seen[..., 1, :-1], seen[..., 1, -1] = False, True
    seen[..., 2, :64] = False
    if kind.startswith("bool"):
        return seen
    bias = torch.randn(lq, lk, generator=g).masked_fill(~seen, -INF)
    return bias if kind == "float32" else bias.to(dtype)


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    num_splits: int = 1,
    bottom_right: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """out, lse, sum p |v| and the largest sum of |q k scale|, in float64 from the definition."""
    q, k, v = query.double(), key.double(), value.double()
    head = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1] if enable_gqa else 1)
    k, v = k[:, head], v[:, head]
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = torch.einsum("bhid,bhjd->bhij", q, k) * factor
    size = torch.einsum("bhid,bhjd->bhij", q.abs(), k.abs()) * abs(factor)
    len_q, len_k = s.shape[2:]
    offset = torch.arange(len_k) - (torch.arange(len_q)[:, None] + len_k - len_q)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if alibi_slopes is not None:
        bias = -alibi_slopes.double()[:, None, None] * offset.abs()
        s, size = s + bias, size + bias.abs()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        s = torch.where(attn_mask, s, -INF)
    elif attn_mask is not None:
        s = s + attn_mask.double()
    if is_causal:
        shift = len_k - len_q if bottom_right else 0
        s = torch.where(torch.ones(s.shape[-2:]).tril(shift).bool(), s, -INF)
    left, right = window_size
    s = torch.where((left < 0) | (offset >= -left), s, -INF)
    s = torch.where((right < 0) | (offset <= right), s, -INF)
    lse = torch.logsumexp(s, dim=-1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double()[:, None])
    p = torch.where(torch.isneginf(s), 0, torch.exp(s - torch.nan_to_num(lse)[..., None]))
    largest = size.amax() if size.numel() else torch.zeros(())
    return p @ v, lse, p @ v.abs(), largest


@pytest.mark.parametrize("dtype_name", DTYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_is_attention(name: str, dtype_name: str) -> None:
    kernel, dtype = KERNELS[name], getattr(torch, dtype_name)
    u = FORMATS[dtype_name].unit_roundoff
    stats = min(u, 2.0**-24)
    stats_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    for label, (shape, options) in PROBLEMS.items():
        b, h, lq, lk, d = (shape.get(n, 1) for n in ("B", "H", "Lq", "Lk", "D"))
        if kernel.positive_scale and options.get("scale", 1.0) <= 0:
            continue
        if not {*options} - {"mask"} <= {*inspect.signature(kernel.fn).parameters}:
            continue
        g = torch.Generator().manual_seed(7)
        q = torch.randn(b, h, lq, d, generator=g).to(dtype)
        k = torch.randn(b, shape.get("Hkv", h), lk, d, generator=g).to(dtype)
        v = torch.randn(b, shape.get("Hkv", h), lk, shape.get("Dv", d), generator=g).to(dtype)
        if "ramp" in shape:  # scores rise from key to key, so that every block rescales
            q, k = q.abs(), (torch.arange(lk)[:, None] / 32).expand_as(k).to(dtype).contiguous()
        if "down" in shape:  # near -200, where exp of the score itself is 0 in float32
            q, k = 0 * q + 8, k / 64 - 6.25
        call = dict(options)
        if (kind := call.pop("mask", None)) is not None:
            call["attn_mask"] = _mask(kind, b, h, lq, lk, dtype)
        bottom_right = kernel.causal_alignment == "bottom_right"
        want, want_lse, weight, size = reference(q, k, v, bottom_right=bottom_right, **call)
        for config in (kernel.configs or {"": {}}).values():
            try:
                result = kernel.fn(q, k, v, **call, **config)
            except NotImplementedError:
                assert name.startswith("torch_sdpa"), label
                continue
            out, lse = result if isinstance(result, tuple) else (result, None)
            where = f"{name} {dtype_name} {label} {config}"
            assert (out.dtype, out.shape) == (dtype, want.shape), where
            # P and the output are rounded to the dtype; all else errs like the statistics.
            slack = stats * (4 * size + 4 * (lk + d) + 16) + (kernel.contract.exp_error or 0)
            bound = (3 * u + 2 * slack) * weight + FORMATS[dtype_name].min_subnormal * (1 + lk)
            assert ((out.double() - want).abs() <= bound).all(), where
            if lse is not None:
                assert (lse.dtype, lse.shape) == (stats_dtype, want_lse.shape), where
                assert (torch.isneginf(lse) == torch.isneginf(want_lse)).all(), where
                seen = ~torch.isneginf(want_lse)
                error = (lse.double() - want_lse)[seen].abs()
                # A quarter of u for exp, and u where the normalizer sums rounded P.
                assert (error <= slack + u * (1 + want_lse[seen].abs() * stats / u)).all(), where


@pytest.mark.parametrize("name", [n for n in KERNELS if n != "torch_sdpa[math]"])
def test_same_call_twice_is_bit_identical_and_leaves_inputs_alone(name: str) -> None:
    g = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 40, 16, generator=g).bfloat16() for _ in range(3))
    before = [t.clone() for t in (q, k, v)]
    first, second = (KERNELS[name].fn(q, k, v, is_causal=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))


def test_configurations_and_variants_have_names_of_their_own() -> None:
    extremal = importlib.import_module("flashcheck.kernels.extremal")
    assert len({kernel.name for kernel in extremal.variants.values()}) == len(extremal.variants)


def test_hidden_values_may_change_the_sign_of_a_zero() -> None:
    """A matrix product of weights 0 and values of -65536 is -0, with 65536 it is 0."""
    problem = Problem(
        dtype="float64", len_q=2, len_k=1, dim=2, dim_v=2, mask=Mask(hides="tail", amount=1)
    )
    check = flashcheck.check("torch_sdpa[flash]", problem, property="poison_masked")
    assert check.verdict is Verdict.PASS
