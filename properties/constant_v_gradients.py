"""With the same value for every key, out does not depend on the weights: dq = dk = 0."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "with V the same for every key, dq and dk are 0",
    # A sink takes weight and has no value.
    applies=lambda case: case.problem.len_k > 0 and case.inputs.sinks is None,
    backward=True,
)
def constant_v_gradients(case: Case, judge: Judge) -> None:
    v = case.inputs.v
    x = case.inputs.with_(v=np.broadcast_to(v[:, :, :1], v.shape).copy())
    found, bound = case.differentiate(case.dout, x).gradients, case.gradient_bound(case.dout, x)
    for name, allowed in (("dq", bound.dq), ("dk", bound.dk)):
        judge.within(name, found[name], np.zeros_like(found[name]), allowed)


@given(data=st.data())
def test_constant_v_gradients(kernel: Subject, data: st.DataObject) -> None:
    constant_v_gradients.test(kernel, data)
