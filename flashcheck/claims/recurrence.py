r"""The recurrence of online softmax, as the derivation states it, and the direct form.

A state is a triple for each row: the maximum m of the scores seen, the normalizer
$l = \sum e^{s_i - m}$ and the unnormalized output $a = \sum e^{s_i - m} v_i$. It starts at
(-inf, 0, 0), takes in a block of keys by `step`, and two states become one by `merge`.

Every function takes the exponential, so that the same lines run in exact arithmetic too:
nothing but $e^{x+y} = e^x e^y$ is used, which $2^x$ on integers satisfies in rationals.
Reference: Milakov and Gimelshein, *Online normalizer calculation for softmax*
(arXiv 1805.02867).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
"""float32, float64, or Python's own numbers as objects."""

Exp = Callable[[Numbers], Numbers]


class State(NamedTuple):
    """m and l [rows, 1], a [rows, dim]."""

    m: Numbers
    l: Numbers
    a: Numbers

    def output(self) -> Numbers:
        """a / l, [rows, dim]."""
        return np.asarray(self.a / self.l)


Step = Callable[[State, Numbers, Numbers, Exp], State]
Merge = Callable[[State, State, Exp], State]


def start(s: Numbers, v: Numbers, m: float = -math.inf) -> State:
    """The state before any key, in the format of `s`."""
    column = np.zeros((len(s), 1), s.dtype)
    return State(column + s.dtype.type(m), column, np.zeros((len(s), v.shape[1]), s.dtype))


def step(state: State, s: Numbers, v: Numbers, exp: Exp = np.exp) -> State:
    """The state after a block of keys: scores s [rows, block], values v [block, dim]."""
    m_new = np.maximum(state.m, s.max(axis=1, keepdims=True))
    alpha = exp(state.m - m_new)
    p = exp(s - m_new)
    return State(m_new, state.l * alpha + p.sum(axis=1, keepdims=True), state.a * alpha + p @ v)


def online(
    s: Numbers,
    v: Numbers,
    *,
    block: int = 128,
    first: float = -math.inf,
    step: Step = step,
    exp: Exp = np.exp,
) -> State:
    """All keys in order, `block` at a time; `first` is the maximum before any."""
    state = start(s, v, first)
    for at in range(0, s.shape[1], block):
        state = step(state, s[:, at : at + block], v[at : at + block], exp)
    return state


def merge(x: State, y: State, exp: Exp = np.exp) -> State:
    """The state of two disjoint sets of keys. Where neither holds one, it holds none."""
    m = np.maximum(x.m, y.m)
    seen = np.where(m == -math.inf, 0, m)  # -inf - -inf is NaN
    of_x, of_y = exp(x.m - seen), exp(y.m - seen)
    return State(m, x.l * of_x + y.l * of_y, x.a * of_x + y.a * of_y)


def direct(s: Numbers, v: Numbers, exp: Exp = np.exp) -> Numbers:
    """Softmax over whole rows with the maximum subtracted, times v."""
    p = exp(s - s.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True) @ v)


def unshifted(s: Numbers, v: Numbers) -> Numbers:
    """The same without the subtraction."""
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.exp(s)
        return np.asarray(p / p.sum(axis=1, keepdims=True) @ v)
