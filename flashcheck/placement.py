"""Placement: the tensors of a call as a script makes them, and where in memory it puts them."""

from __future__ import annotations

from typing import Any

from flashcheck import arena
from flashcheck.arena import Guard
from flashcheck.grad_out import GradOut
from flashcheck.inputs import LENGTHS, Inputs
from flashcheck.kernel import Target


def tensors(x: Inputs, guard: Guard = "zeros") -> list[tuple[str, str, Any]]:
    """(name, dtype, values) of q, k, v and the mask; k and v of a cache are its pool, of which
    pages that no sequence has hold `guard`."""
    k, v = (t if x.pages is None else arena.pool(x, t, guard) for t in (x.k, x.v))
    found = [("q", x.dtype, x.q), ("k", x.dtype, k), ("v", x.dtype, v)]
    return found if x.mask is None else [*found, ("mask", x.mask_dtype, x.mask)]


def axis(name: str, x: Inputs) -> int:
    """The axis of a tensor that is likely to have a pattern: queries, keys or pages."""
    if name == "mask":
        assert x.mask is not None
        return x.mask.ndim - 1
    return 2 if name == "q" or x.pages is None else 0


def strides(
    x: Inputs, target: Target, grad_out: GradOut | None = None
) -> dict[str, tuple[tuple[int, ...], int]]:
    """Strides and offset of each tensor: those of q, k and v are of [B, H, L, D], or of a pool."""
    plan = arena.plan(arena.key_of(x, target.kernel.layout, grad_out))
    found = {}
    for view in plan.views:
        s = view.strides
        pool = x.pages is not None and view.name in ("k", "v")
        if target.kernel.layout == "bshd" and view.name in arena.HEADED and not pool:
            s = (s[0], s[2], s[1], s[3])
        offset = view.offset if x.layout != "packed" else 0
        found[view.name] = (s, offset)
    return found


def place(text: str, strides: tuple[int, ...], offset: int, fill: str | int = "zeros") -> str:
    """fill: what lies around, a guard or, in int32, a number."""
    more = f", {offset}" if offset else ""
    held = {"zeros": "", "nan": ", fill=math.nan", 0: ""}.get(fill, f", fill={fill}")
    return f"place({text}, {strides}{more}{held})"


def place_option(
    x: Inputs, name: str, text: str, where: tuple[tuple[int, ...], int], guard: Guard
) -> str:
    """An option that is a tensor, put where it lay."""
    return place(text, *where, fill=arena.beside(x, name, guard) if name in LENGTHS else guard)


def contiguous(shape: tuple[int, ...], where: tuple[tuple[int, ...], int]) -> bool:
    """Whether strides and offset are those of a new tensor."""
    strides, offset = where
    step, own = 1, True
    for n, stride in zip(shape[::-1], strides[::-1], strict=True):
        own &= n == 1 or stride == step
        step *= max(n, 1)
    return own and not offset
