"""Incoherent processing: q and k rotated, so that no channel stands out when they are rounded.

R = D H / sqrt(n) with H the Hadamard matrix of n channels and D a diagonal of random signs is
orthogonal: (q R)(k R)^T = q k^T, whatever is attended to. An outlier of one channel becomes n
numbers, each 1 / sqrt(n) as large. n has to be a power of two.
Source: Shah et al., *FlashAttention-3* (arXiv 2407.08608), section 3.3; Chee et al., *QuIP*
(arXiv 2307.13304).
"""

from __future__ import annotations

import math

import torch


def rotated(x: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """x R, [..., n], by n log2(n) additions; signs [n] are 1 or -1, the same for q and k.

    Errors: ValueError unless n is a power of two.
    """
    n = x.shape[-1]
    if n & (n - 1) or n == 0:
        raise ValueError(f"there is no rotation of {n} channels: write a power of two")
    y = x * signs.to(x.dtype)
    half = 1
    while half < n:
        y = y.unflatten(-1, (n // (2 * half), 2, half))
        even, odd = y.unbind(-2)
        y = torch.stack((even + odd, even - odd), -2).flatten(-3)
        half *= 2
    return y / math.sqrt(n)


def random_signs(n: int, seed: int = 0) -> torch.Tensor:
    """[n] of 1 and -1, in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, (n,), generator=generator).double() * 2 - 1
