"""Correct kernels at the edge of the numeric contract: the gate must pass every one.

Each variant keeps the contract to the letter and spends one of its allowances in full, in
the direction that hurts most. A bound that fails one of them is unsound. One online-softmax
loop serves all; `Style` says which allowance is spent. What must not err (an exp without an
error, the argument of an exp) is computed in float64 and rounded once.
Source: the numeric contract (docs/contract.md); the line of it is named beside each field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from flashcheck.kernel import Contract, Kernel

from .numpy_naive import to_array, to_tensor

Array = NDArray[Any]

_HALF: dict[torch.dtype, Any] = {torch.float16: np.float16, torch.bfloat16: ml_dtypes.bfloat16}
_EXP_ERROR: dict[Any, float] = {np.float16: 2.0**-13, ml_dtypes.bfloat16: 2.0**-10}  # u / 4
_CHUNK = 1 << 21  # elements of the largest temporary


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """Which allowance of the contract is spent."""

    BLOCK_N: int | None = 64  # any blocks; None: the whole row at once
    # any order of summation: strictly sequential float32 sums of sorted terms, so that a
    # partial sum first grows as far as it can on one side
    sums: Literal["blas", "ascending", "descending"] = "blas"
    # relative error of exp: high, low, or high for keys whose V sums to more than 0
    exp: Literal["exact", "high", "low", "mixed"] = "exact"
    # a term of q.k may carry four more roundings
    scaling: Literal["after", "q", "sqrt"] = "after"
    # exp2, with log2(e) folded into the scale, or of one rounded product, or by an fma
    base2: Literal["no", "folded", "product", "fma"] = "no"
    # the argument of exp may be off by u (|s| + |m| + 5 (m - s)): signs alternate over keys
    argument_off: bool = False
    # all rescale factors of one term carry together at most (8 + Lk) u
    rescale_off: bool = False
    # rescale only where the maximum grows by more than so many octaves; P <= 2^8 fits all
    lag: float = 0.0
    # an exp below 2^-124 may be flushed to 0
    flush: bool = False
    # P normalized before it is rounded and multiplied (needs BLOCK_N=None)
    normalize_first: bool = False
    # the normalizer sums P after it is rounded: declared, since lse is judged
    sum_rounded: bool = False
    # P kept wider than the input dtype
    wide_p: bool = False
    # KV splits, each with its own (out, lse), merged
    splits: int = 1
    contract: Contract = field(default_factory=Contract)


def _exp(x: Array, *, base: float = math.e) -> Array:
    """base^x in float64, not yet rounded to the statistics' format."""
    wide = x.astype(np.float64)
    return np.asarray(np.exp2(wide) if base == 2 else np.exp(wide))


def _log(x: Array) -> Array:
    return np.asarray(np.log(x.astype(np.float64))).astype(x.dtype)


def _dot(a: Array, b: Array, sums: str) -> Array:
    """[..., M, K] times [..., K, N]: by BLAS, or each element a sequential sum of its terms."""
    if sums == "blas" or a.shape[-1] == 0:
        return np.asarray(a @ b)
    terms = a[..., :, None, :] * b.swapaxes(-1, -2)[..., None, :, :]
    return _total(terms, sums)


def _total(terms: Array, sums: str) -> Array:
    """The sum over the last axis; cumsum adds strictly one after the other."""
    if sums == "blas" or terms.shape[-1] == 0:
        return np.asarray(terms.sum(axis=-1))
    terms = np.sort(terms, axis=-1)
    if sums == "descending":
        terms = terms[..., ::-1]
    return np.asarray(np.cumsum(terms, axis=-1, dtype=terms.dtype)[..., -1])


def _rows(
    q: Array, k: Array, v: Array, bias: Array | None, hidden: Array, sm_scale: Any, style: Style,
    half: Any,
) -> tuple[Array, Array]:  # fmt: skip
    """Some rows: q [B, H, M, D], k [B, H, N, D], v [B, H, N, Dv], bias and hidden [B, H, M, N].

    Returns out [B, H, M, Dv] and lse [B, H, M], both in q's format (that of the statistics).
    """
    dtype: type = q.dtype.type
    u = float(np.finfo(dtype).eps) / 2
    len_k = k.shape[2]
    base = 2.0 if style.base2 in ("folded", "fma") else math.e
    log2e = dtype(math.log2(math.e))
    own = 1 if dtype is np.float32 else 4  # roundings that exp and one product cost by themselves
    allowed = _EXP_ERROR.get(half, 8 * u) - own * u

    step = style.BLOCK_N or max(len_k, 1)
    blocks = -(-len_k // step)
    m_i = np.full((*q.shape[:3], 1), -np.inf, dtype)
    l_i = np.zeros_like(m_i)
    acc = np.zeros((*q.shape[:3], v.shape[3]), dtype)
    for start_n in range(0, len_k, step):
        cols = slice(start_n, start_n + step)
        k_n, v_n = k[:, :, cols], v[:, :, cols]
        # Scores, in units of ln 2 where log2(e) is folded into the scale.
        if style.scaling == "q":
            s = _dot(q * sm_scale, k_n.swapaxes(-1, -2), style.sums)
        elif style.scaling == "sqrt":
            root = np.sqrt(np.abs(sm_scale))
            s = _dot(q * np.copysign(root, sm_scale), (k_n * root).swapaxes(-1, -2), style.sums)
        elif base == 2 and bias is None:
            s = _dot(q, k_n.swapaxes(-1, -2), style.sums)
        else:
            s = _dot(q, k_n.swapaxes(-1, -2), style.sums) * sm_scale
        factor = dtype(1)  # what turns s into the units of the maximum
        if base == 2:
            factor = log2e if bias is not None else sm_scale * log2e
        if bias is not None:
            s = s + bias[..., cols]
        scaled = np.where(hidden[..., cols], dtype(-np.inf), s * factor)

        m_new = np.maximum(m_i, scaled.max(axis=-1, keepdims=True))
        if style.lag:
            octave = 1.0 if base == 2 else math.log(2)
            m_new = np.where(m_new - m_i <= style.lag * octave, m_i, m_new)
        m_ref = np.where(m_new == -np.inf, dtype(0), m_new)
        alpha = _exp(m_i - m_ref, base=base)
        if style.rescale_off:  # less alpha's own rounding and that of multiplying by it
            alpha = alpha * (1 + ((8 + len_k) / blocks - 1 - own) * u)
        alpha = alpha.astype(dtype)

        x = np.asarray(scaled - m_ref)
        if style.base2 == "fma":  # s * factor - m, rounded once
            exact = s.astype(np.float64) * float(factor) - m_ref
            x = np.where(hidden[..., cols], -np.inf, exact).astype(dtype)
        elif style.base2 == "product":
            x = x * log2e
        elif style.argument_off:  # float64 spends two of the five by itself
            s64, m64 = scaled.astype(np.float64), m_ref.astype(np.float64)
            finite = np.where(np.isinf(s64), 0, s64)
            sign = np.where(np.arange(s.shape[-1]) % 2, -u, u)
            five = 5 if dtype is np.float32 else 3
            x = s64 - m64 + sign * (np.abs(finite) + np.abs(m64) + five * (m64 - finite))
        p = _exp(x, base=2.0 if style.base2 != "no" else math.e)
        if style.exp != "exact":
            up = v_n.sum(axis=-1)[..., None, :] > 0 if style.exp == "mixed" else style.exp == "high"
            p = p * np.where(up, 1 + allowed, 1 - allowed)
        p = p.astype(dtype)
        if style.flush:
            p = np.where(p < 2.0**-124, dtype(0), p)
            alpha = np.where(alpha < 2.0**-124, dtype(0), alpha)

        l_n = _total(p, style.sums)[..., None]
        if style.normalize_first:
            p = p / np.where(l_n == 0, dtype(1), l_n)
        if half is not None and not style.wide_p:
            p = p.astype(half).astype(dtype)
        if style.sum_rounded:
            l_n = _total(p, style.sums)[..., None]
        l_i = l_i * alpha + l_n
        acc = acc * alpha + _dot(p, v_n, style.sums)
        m_i = m_new

    lse = ((m_i * dtype(math.log(2)) if base == 2 else m_i) + _log(l_i))[..., 0]
    return (acc if style.normalize_first else acc / np.where(l_i == 0, dtype(1), l_i)), lse


def _merge(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """One result from those of the splits: each weighs exp(its lse)."""
    lse_i = np.stack([lse for _, lse in parts])
    m = lse_i.max(axis=0)
    x = lse_i - np.where(m == -np.inf, 0, m).astype(m.dtype)
    w = _exp(x).astype(m.dtype)  # 0 for an empty split
    l = w.sum(axis=0)
    out = sum(w_i[..., None] * out_i for w_i, (out_i, _) in zip(w, parts, strict=True))
    return out / np.where(l == 0, 1, l).astype(l.dtype)[..., None], m + _log(l)


def _kernel(name: str, style: Style) -> Kernel:
    @np.errstate(all="ignore")
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv], lse."""
        q, k, v = to_array(query), to_array(key), to_array(value)
        if enable_gqa:  # query head h reads key head h // (Hq // Hkv)
            group = q.shape[1] // k.shape[1]
            k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
        sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
        batch, heads, len_q, dim = q.shape
        len_k, dim_v = v.shape[2:]
        shape = (batch, heads, len_q, len_k)
        bias, hidden = None, np.zeros(shape, bool)
        if is_causal:  # aligned top-left: query i sees key j where j <= i
            hidden = hidden | (np.arange(len_k) > np.arange(len_q)[:, None])
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            hidden = hidden | ~attn_mask.cpu().numpy()
        elif attn_mask is not None:
            bias = np.broadcast_to(to_array(attn_mask).astype(q.dtype), shape)
            hidden = hidden | (bias == -np.inf)

        out = np.empty((batch, heads, len_q, dim_v), q.dtype)
        lse = np.empty((batch, heads, len_q), q.dtype)
        tall = max(1, _CHUNK // max(1, batch * heads * len_k * max(dim, dim_v)))
        wide = max(1, -(-len_k // style.splits))
        for start_m in range(0, len_q, tall):
            rows = slice(start_m, start_m + tall)
            parts = []
            for split in range(style.splits):  # the last ones may be empty
                cols = slice(split * wide, (split + 1) * wide)
                parts.append(
                    _rows(
                        q[:, :, rows],
                        k[:, :, cols],
                        v[:, :, cols],
                        None if bias is None else bias[:, :, rows, cols],
                        hidden[:, :, rows, cols],
                        sm_scale,
                        style,
                        _HALF.get(query.dtype),
                    )
                )
            out[:, :, rows], lse[:, :, rows] = parts[0] if len(parts) == 1 else _merge(parts)
        return to_tensor(out, query), torch.from_numpy(lse).to(query.device)

    return Kernel(attention, name=f"extremal[{name}]", contract=style.contract)


_AFTER = Contract(normalizer="after_rounding")
_STYLES: dict[str, Style] = {
    "sequential_ascending": Style(BLOCK_N=None, sums="ascending"),
    "sequential_descending": Style(BLOCK_N=None, sums="descending"),
    "exp_high": Style(exp="high"),
    "exp_low": Style(exp="low"),
    "exp_mixed": Style(exp="mixed"),
    "prescaled": Style(scaling="q"),
    "sqrt_prescaled": Style(scaling="sqrt"),
    "block_of_one": Style(BLOCK_N=1),
    "normalize_first": Style(BLOCK_N=None, normalize_first=True),
    "rounded_sum": Style(sum_rounded=True, contract=_AFTER),
    "exp2": Style(base2="folded"),
    "exp2_fma": Style(base2="fma"),
    "exp2_product": Style(base2="product"),
    "lazy_rescale": Style(BLOCK_N=16, lag=8.0),
    "splits": Style(splits=4),
    "flush_exp": Style(flush=True),
    "argument_off": Style(BLOCK_N=None, argument_off=True),
    "rescale_off": Style(BLOCK_N=16, rescale_off=True),
    "wide_p": Style(wide_p=True),
}
variants: dict[str, Kernel] = {name: _kernel(name, style) for name, style in _STYLES.items()}
kernel = variants["sequential_ascending"]
