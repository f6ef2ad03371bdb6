"""The tensors that claims are measured on: hashed noise, the same bits on every machine."""

from __future__ import annotations

import math

import numpy as np

from flashcheck.fills import Fill, Noise
from flashcheck.formats import FORMATS, Array


def draw(rows: int, columns: int, seed: int, noise: Noise = "normal") -> Array:
    """[rows, columns] of unit noise in float64."""
    shape = (1, 1, rows, columns)
    fill = Fill(noise=noise, spread=1.0)
    return np.asarray(fill.evaluate(shape, FORMATS["float64"], seed)[0, 0])


def scores_and_values(rows: int, keys: int, dim: int, seed: int) -> tuple[Array, Array]:
    """Scores q.k / sqrt(dim) [rows, keys] of unit noise in q and k, and v [keys, dim]."""
    q, k, v = (draw(n, dim, seed + i) for i, n in enumerate((rows, keys, keys)))
    return q @ k.T / math.sqrt(dim), v
