"""Adding a constant to all scores of a row leaves out as it was and moves lse by it.

Channel 0 of q is 1 and channel 0 of every key is 0, then c: the scores move by scale * c.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "adding a constant to a row's scores changes lse by it, and out not at all",
    applies=lambda case: case.problem.len_k > 0,
    runs=("shifted scores", "scores before the shift"),
)
def score_shift(case: Case, judge: Judge) -> None:
    x = case.inputs.unscaled().with_(softcap=0.0, sinks=None)
    q, k, moved = x.q.copy(), x.k.copy(), x.k.copy()
    q[..., 0] = 1.0
    k[..., 0] = 0.0
    # Representable in every dtype, float8 included.
    moved[..., 0] = (-256.0, -16.0, 16.0, 192.0)[case.problem.seed % 4]
    first, second = x.with_(q=q, k=k), x.with_(q=q, k=moved)
    shift = x.exact_scale * float(moved[0, 0, 0, 0])
    seen = case.attention(first).seen
    a, b = case.exact_bound(first), case.exact_bound(second)
    judge.within("out", case.out(second), case.out(first), a.out + b.out, judged=seen[..., None])
    lse = case.lse(first), case.lse(second)
    if lse[0] is not None and lse[1] is not None:
        rounding = 2.0**-50 * (np.abs(case.attention(second).lse) + abs(shift))
        rounding = np.where(seen, rounding, 0.0)
        judge.within("lse", lse[1], lse[0] + shift, a.lse + b.lse, radius=rounding, judged=seen)


@given(data=st.data())
def test_score_shift(kernel: Subject, data: st.DataObject) -> None:
    score_shift.test(kernel, data)
