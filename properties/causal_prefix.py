"""Under a causal mask the first rows do not depend on what comes after them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def applies(case: Case) -> bool:
    p = case.problem
    aligned = p.len_q == p.len_k or not case.inputs.bottom_right
    return p.is_causal and aligned and min(p.len_q, p.len_k) > 1


@law("under is_causal, the first rows are those of the shorter problem", applies=applies)
def causal_prefix(case: Case, judge: Judge) -> None:
    x = case.inputs
    longest = min(x.q.shape[2], x.k.shape[2])
    t = 1 + case.problem.seed % (longest - 1)
    short = x.with_(q=x.q[:, :, :t], k=x.k[:, :, :t], v=x.v[:, :, :t])
    first, second = case.exact_bound(), case.exact_bound(short)
    judge.within("out", case.out(short), case.out()[:, :, :t], first.out[:, :, :t] + second.out)
    lse = case.lse(), case.lse(short)
    if lse[0] is not None and lse[1] is not None:
        judge.within("lse", lse[1], lse[0][:, :, :t], first.lse[:, :, :t] + second.lse)


@given(data=st.data())
def test_causal_prefix(kernel: Subject, data: st.DataObject) -> None:
    causal_prefix.test(kernel, data)
