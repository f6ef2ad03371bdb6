"""Equal scores give the mean of V, and the score plus ln n as lse."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law("equal scores give the mean of V and lse = ln n", applies=lambda case: case.problem.len_k > 0)
def equal_scores(case: Case, judge: Judge) -> None:
    x = case.inputs
    equal = x.with_(
        q=np.zeros_like(x.q), mask=x.unbiased_mask, alibi_slopes=None, sinks=None
    )  # fmt: skip
    exact, bound = case.attention(equal), case.exact_bound(equal)
    n = equal.visible.sum(-1)
    weights = equal.visible / np.maximum(n, 1)[..., None]
    mean, size = weights @ exact.v, weights @ np.abs(exact.v)
    rows = exact.seen
    # The mean is summed in float64.
    radius = (x.k.shape[2] + 2) * (2.0**-53 * size + 2.0**-1074)
    judge.within("out", case.out(equal), mean, bound.out, radius=radius, judged=rows[..., None])
    lse = case.lse(equal)
    if lse is not None:
        # np.log is right to two units in the last place, which the oracle's self-check verifies.
        expected = np.log(np.maximum(n, 1))
        judge.within("lse", lse, expected, bound.lse, radius=2.0**-51 * expected, judged=rows)


@given(data=st.data())
def test_equal_scores(kernel: Subject, data: st.DataObject) -> None:
    equal_scores.test(kernel, data)
