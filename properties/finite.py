"""Finite inputs inside the contract give finite results."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law("finite inputs inside the contract's range give finite out and lse")
def finite(case: Case, judge: Judge) -> None:
    reply = case.run()
    bound, rows = case.exact_bound(), case.judged_rows()
    judge.finite("out", reply.outs[0], np.isfinite(bound.out) & rows[..., None])
    if reply.lses:
        seen = case.attention().seen
        judge.finite("lse", reply.lses[0], np.isfinite(bound.lse) & seen)


@given(data=st.data())
def test_finite(kernel: Subject, data: st.DataObject) -> None:
    finite.test(kernel, data)
