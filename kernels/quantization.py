"""Quantization to float8: a tensor, a head or a block of rows shares a factor.

A factor takes the largest magnitude to the largest number of the format, so that nothing
saturates and as little as possible underflows; x is about quantized * factor.
Source: Shah et al., *FlashAttention-3* (arXiv 2407.08608), section 3.3.
"""

from __future__ import annotations

from typing import Literal

import torch

Per = Literal["tensor", "head", "block"]


def quantized(
    x: torch.Tensor, dtype: torch.dtype, per: Per = "head", block: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [B, H, L, D] in `dtype`, and its float32 factors: [B, H], or [B, H, ceil(L / block)].

    Per tensor they are [B, H] as well, all the same; none is subnormal.
    """
    size = x.abs().amax(-1)  # [B, H, L]
    if per == "block":
        whole = torch.nn.functional.pad(size, (0, -x.shape[2] % block))
        largest = whole.unflatten(-1, (-1, block)).amax(-1)
    else:
        largest = size.amax((0, 1, 2) if per == "tensor" else 2).expand(size.shape[:2])
    limit = torch.finfo(dtype).max
    factor = (largest / limit).float().clamp(min=torch.finfo(torch.float32).tiny)
    # Rounded to float32, a factor may be too small by half a unit: cut what would be beyond.
    scaled = (x / by_row(factor, x.shape[2], block).to(x.dtype)).clamp(-limit, limit)
    return scaled.to(dtype), factor


def restored(x: torch.Tensor, factor: torch.Tensor, block: int = 1) -> torch.Tensor:
    """x times its factor in float64, which is exact."""
    return x.double() * by_row(factor, x.shape[2], block).double()


def by_row(factor: torch.Tensor, length: int, block: int) -> torch.Tensor:
    """Factors [B, H] or [B, H, blocks] as [B, H, 1 or length, 1]."""
    if factor.dim() == 2:
        return factor[..., None, None]
    return factor.repeat_interleave(block, dim=2)[:, :, :length, None]
