"""Every output lies between the smallest and the largest value that its row sees."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "out lies in the range of the values that its row sees",
    applies=lambda case: case.problem.len_k > 0,
)
def convexity(case: Case, judge: Judge) -> None:
    out, exact = case.out(), case.attention()
    low, high = np.empty_like(out), np.empty_like(out)
    for i in range(out.shape[2]):
        seen = case.inputs.visible[:, :, i, :, None]
        low[:, :, i] = np.where(seen, exact.v, np.inf).min(2)
        high[:, :, i] = np.where(seen, exact.v, -np.inf).max(2)
    rows = exact.seen[..., None]
    low, high = np.where(rows, low, 0.0), np.where(rows, high, 0.0)
    if case.inputs.sinks is not None:  # their value is 0
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    judge.within("out", out, np.clip(out, low, high), case.exact_bound().out, judged=rows)


@given(data=st.data())
def test_convexity(kernel: Subject, data: st.DataObject) -> None:
    convexity.test(kernel, data)
