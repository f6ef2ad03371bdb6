"""GradOut: what a call is asked to differentiate, and with which upstream gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from flashcheck.fills import Fill
from flashcheck.formats import FORMATS, Array

Wrt = Literal["q", "k", "v"]
GradLayout = Literal["contiguous", "transposed", "strided", "expanded"]

WRT: tuple[Wrt, ...] = get_args(Wrt)
GRAD_LAYOUTS: tuple[GradLayout, ...] = get_args(GradLayout)

FILLS: tuple[Fill, ...] = (
    Fill(level=1.0),
    Fill("spike", level=1.0, at=-1),
    Fill(noise="normal", spread=1.0),
    Fill(noise="normal", spread=1.0),
    Fill(noise="signs", spread=1.0),
    Fill("stairs", level=0.25),
    Fill(noise="outliers", spread=0.5),
    Fill(noise="normal", spread=2.0**-8),
    Fill(noise="wide", spread=8.0),
    Fill("cycle", level=1.0, period=16),
)
"""Gradients of out by its row, simplest first: a problem's seed says which (`recipe`)."""


@dataclass(frozen=True, eq=False)
class GradOut:
    """A request for the gradients of sum(out * values).

    values  float64 [B, Hq, Lq, Dv], exact in the input dtype
    wrt     the tensors that require a gradient
    layout  how it lies in memory: contiguous; transposed (stored [B, L, H, D]); strided (every
            second channel); expanded (one element with strides of 0, as out.sum() gives it)

    passes  how often the backward of one graph is run, as retain_graph=True allows: the gradients
            are those of the last time

    Errors: ValueError for no tensor, and for values that an expanded tensor cannot hold.
    """

    values: Array
    wrt: tuple[Wrt, ...] = WRT
    layout: GradLayout = "contiguous"
    passes: int = 1

    def __post_init__(self) -> None:
        if not self.wrt:
            raise ValueError("wrt is empty; it must name one of q, k and v")
        if self.layout == "expanded" and self.values.min() != self.values.max():
            raise ValueError("an expanded grad_out repeats one value, and these differ")


def recipe(seed: int) -> Fill:
    """The fill of grad_out that goes with a problem's seed."""
    return FILLS[seed % len(FILLS)]


def telling(seed: int) -> int:
    """A seed nearby whose grad_out has noise of the usual size: no two of its rows are alike, so
    that each of them shows where it is left out."""
    noisy = [n for n, f in enumerate(FILLS) if f.noise != "none" and 0.5 <= f.spread <= 1]
    return seed - seed % len(FILLS) + noisy[seed % len(noisy)]


def evaluate(seed: int, dtype: str, shape: tuple[int, int, int, int]) -> Array:
    """grad_out [B, Hq, Lq, Dv] of a problem with this seed, exact in `dtype`."""
    # The seeds of q, k, v and the mask are 4 seed to 4 seed + 3: the complement is none.
    return recipe(seed).evaluate(shape, FORMATS[dtype], 2**63 - 1 - seed)


def constant(shape: tuple[int, int, int, int]) -> Array:
    """grad_out of out.sum()."""
    return np.ones(shape)
