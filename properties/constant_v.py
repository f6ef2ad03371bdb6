"""With V all ones every row that sees a key gives 1: the weights sum to one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law("with V all ones, out is 1", applies=lambda case: case.problem.len_k > 0)
def constant_v(case: Case, judge: Judge) -> None:
    # A sink takes its share of the weights, and carries no value.
    x = case.inputs.unscaled()
    x = x.with_(v=np.ones_like(x.v), sinks=None)
    out, bound, seen = case.out(x), case.exact_bound(x), case.attention(x).seen[..., None]
    judge.within(
        "out", out, np.broadcast_to(np.where(seen, 1.0, 0.0), out.shape), bound.out, judged=seen
    )
    if case.kernel.exact_constant_v:
        judge.identical(
            "out", np.where(seen, 1.0, out), out, "constant V", "out was expected to be exactly 1"
        )


@given(data=st.data())
def test_constant_v(kernel: Subject, data: st.DataObject) -> None:
    constant_v.test(kernel, data)
