"""Merge: the partial results of two sets of keys as that of their union, in NumPy or torch.

A set of keys leaves in each row a state (m, l, acc): the maximum of its scores, and sums of
exp(s - m) and of exp(s - m) v. Merging is associative, commutative, and has the state of no key,
(-inf, 0, 0), as its identity; so splits of the keys can be merged in any order, empty ones and
those whose keys are all hidden too. A result is a state as well: (lse, 1, out). So is a sink,
a key without a value: (sink, 1, 0).
Source: Milakov and Gimelshein, *Online normalizer calculation for softmax*, section 3.1
(arXiv 1805.02867).
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np
import torch

State = tuple[Any, Any, Any]
"""m and l [..., 1], acc [..., Dv], all three of NumPy or of torch, in one format."""


def merge(a: State, b: State) -> State:
    """The state of the keys of `a` and of `b`; each sum is rescaled to the larger maximum."""
    xp: ModuleType = torch if isinstance(a[0], torch.Tensor) else np
    (m_a, l_a, acc_a), (m_b, l_b, acc_b) = a, b
    m = xp.maximum(m_a, m_b)
    m_ref = xp.where(m == -math.inf, 0.0, m)  # no key in either: avoid inf - inf
    alpha, beta = xp.exp(m_a - m_ref), xp.exp(m_b - m_ref)
    return m, l_a * alpha + l_b * beta, acc_a * alpha + acc_b * beta
