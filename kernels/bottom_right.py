"""A causal mask that is aligned at the ends: the last query sees the last key.

Query i sees key j where j <= i + Lk - Lq. This is a window without a left end that ends at the
query's own place, since windows are aligned at the ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from flashcheck.kernel import Kernel


def bottom_right(kernel: Kernel) -> Kernel:
    """The kernel, which takes windows, with is_causal aligned at the ends."""
    attention: Callable[..., Any] = kernel.fn

    @wraps(attention)
    def aligned(
        *tensors: Any, is_causal: bool = False, window_size: tuple[int, int] = (-1, -1), **rest: Any
    ) -> Any:
        if is_causal:
            window_size = (window_size[0], 0)
        return attention(*tensors, window_size=window_size, **rest)

    return replace(kernel, fn=aligned, causal_alignment="bottom_right")
