"""exp2 as a polynomial on units that multiply and add, where the exponential unit is too slow.

2^x = 2^n 2^f with n = floor(x), so that 0 <= f < 1. 2^f is interpolated at the degree + 1
Chebyshev nodes of [0, 1] and evaluated by Horner's rule; all coefficients are positive.
Source: FlashAttention-4's softmax (github.com/Dao-AILab/flash-attention, degree 3, and other
coefficients); Trefethen, *Approximation Theory and Approximation Practice*, chapter 4.
"""

from __future__ import annotations

import math
from functools import cache

import torch
from numpy.polynomial import Chebyshev, Polynomial


@cache
def coefficients(degree: int) -> tuple[float, ...]:
    """Of 1, f, f^2, ..."""
    fitted = Chebyshev.interpolate(lambda f: 2**f, degree, domain=[0, 1])
    return tuple(map(float, fitted.convert(kind=Polynomial).coef))


def exp2(x: torch.Tensor, degree: int) -> torch.Tensor:
    """2^x in x's format, for x <= 0 or little above; 0 for -inf."""
    x = x.clamp(min=-2000.0)  # -inf - -inf
    n = x.floor()
    f = x - n  # exact
    *rest, p = coefficients(degree)
    value = torch.full_like(f, p)
    for c in reversed(rest):
        value = value * f + c
    return torch.ldexp(value, n)


def error(degree: int, unit_roundoff: float = 2.0**-24) -> float:
    r"""Bound on the relative error of `exp2` of its argument.

    Interpolation is off by (ln 2)^(d+1) 2^y / (d+1)! prod |f - f_k| for some y in [0, 1], the
    product being at most 2 / 4^(d+1); relative to 2^f >= 1 this is
    4 (ln 2 / 4)^(d+1) / (d+1)!. Horner's rule makes 2 d roundings of positive terms, rounding
    the coefficients one more.
    """
    interpolated = 4 * (math.log(2) / 4) ** (degree + 1) / math.factorial(degree + 1)
    rounded = (2 * degree + 1) * unit_roundoff / (1 - (2 * degree + 1) * unit_roundoff)
    return (1 + interpolated) * (1 + rounded) - 1
