r"""Scores are linear in q and in k alike: $\sum_i q_i \cdot dq_i = \sum_j k_j \cdot dk_j$.

Both are $\sum_{ij} dS_{ij} \sigma q_i \cdot k_j$, summed over the rows of all query heads that
read a key head, whatever is done to the scores after they are scaled. The sums are formed in
float64, whose rounding is added to the bound.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.formats import Array
from flashcheck.judge import Judge
from flashcheck.law import Subject, law
from flashcheck.oracle.float64 import U64, gamma


@law("q.dq summed over queries is k.dk summed over keys", backward=True)
def gradient_homogeneity(case: Case, judge: Judge) -> None:
    x, bound = case.inputs, case.gradient_bound(case.dout)
    found = case.differentiate(case.dout).gradients
    b, _, hkv, _, _, _, _ = x.shape

    def total(tensor: Array, gradient: Array, allowed: Array) -> tuple[Array, Array]:
        """The sum of products of each key head, [B, Hkv], and how far it may be off."""
        with np.errstate(over="ignore", invalid="ignore"):
            terms = (tensor * gradient).reshape(b, hkv, -1)
            # A product with an infinite bound says nothing, be the factor 0.
            off = np.where(np.isfinite(allowed), np.abs(tensor) * allowed, np.inf)
            rounding = gamma(terms.shape[2] + 1, U64) * np.abs(terms).sum(2)
            return terms.sum(2), off.reshape(b, hkv, -1).sum(2) + rounding

    left, off_left = total(x.q, found["dq"], bound.dq)
    right, off_right = total(x.k, found["dk"], bound.dk)
    judge.within("q.dq", left, right, off_left + off_right)


@given(data=st.data())
def test_gradient_homogeneity(kernel: Subject, data: st.DataObject) -> None:
    gradient_homogeneity.test(kernel, data)
