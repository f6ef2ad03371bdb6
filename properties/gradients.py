"""dq, dk and dv agree with the exact gradients within the derived bound."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law("dq, dk and dv lie within the derived bound of the exact gradients", backward=True, weight=12)
def gradients(case: Case, judge: Judge) -> None:
    reply, bound = case.differentiate(case.dout), case.gradient_bound(case.dout)
    exact = case.exact_gradients()
    for name, true, allowed, vacuous in (
        ("dq", exact.dq, bound.dq, bound.vacuous_dq),
        ("dk", exact.dk, bound.dk, bound.vacuous_dk),
        ("dv", exact.dv, bound.dv, bound.vacuous_dv),
    ):
        judge.within(
            name, reply.gradients[name], true.value, allowed, radius=true.radius, low=true.low,
            vacuous=vacuous,
        )  # fmt: skip
    # Training may take another path through the forward pass.
    forward, rows = case.exact_bound(), case.judged_rows()
    judge.within("out", reply.outs[0], case.out(), 2 * forward.out, judged=rows[..., None])
    lse = case.lse()
    if reply.lses and lse is not None:
        judge.within("lse", reply.lses[0], lse, 2 * forward.lse, judged=rows)


@given(data=st.data())
def test_gradients(kernel: Subject, data: st.DataObject) -> None:
    gradients.test(kernel, data)
