"""Alike: two sets of gradients of one problem, each within its bound of the exact ones."""

from __future__ import annotations

from collections.abc import Mapping

from flashcheck.bounds.backward import GradientBound
from flashcheck.formats import Array
from flashcheck.judge import Judge


def alike(
    judge: Judge, got: Mapping[str, Array], expected: Mapping[str, Array], bound: GradientBound
) -> None:
    """Judge that the gradients in `got` are those in `expected` within twice the bound."""
    for name, allowed in (("dq", bound.dq), ("dk", bound.dk), ("dv", bound.dv)):
        if name in got:
            judge.within(name, got[name], expected[name], 2 * allowed)
