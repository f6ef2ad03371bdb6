r"""Weights sum to 1: $\sum_j dv_j$ is the sum of grad_out over the rows that see a key.

The sums over keys and, in GQA, over the rows of all query heads of a key head are formed in
float64, whose rounding is added to the bound.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law
from flashcheck.oracle.float64 import U64, gamma


@law(
    "dv summed over keys is grad_out summed over the rows that see a key",
    # A sink takes weight and has no value.
    applies=lambda case: case.problem.len_k > 0 and case.inputs.sinks is None,
    backward=True,
)
def value_gradient_sum(case: Case, judge: Judge) -> None:
    dv, bound = case.differentiate(case.dout).gradients["dv"], case.gradient_bound(case.dout).dv
    b, hkv, n, channels = dv.shape
    rows = np.where(case.attention().seen[..., None], case.dout, 0.0)
    rows = rows.reshape(b, hkv, -1, channels)
    rounding = gamma(n, U64) * np.abs(dv).sum(2) + gamma(rows.shape[2], U64) * np.abs(rows).sum(2)
    with np.errstate(over="ignore", invalid="ignore"):
        total = dv.sum(2)
    judge.within("sum of dv", total, rows.sum(2), bound.sum(2) + rounding)


@given(data=st.data())
def test_value_gradient_sum(kernel: Subject, data: st.DataObject) -> None:
    value_gradient_sum.test(kernel, data)
