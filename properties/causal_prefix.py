"""Under a causal mask the first rows do not depend on what comes after them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def applies(case: Case) -> bool:
    p = case.problem
    return p.is_causal and case.space.dense and min(p.len_q, p.len_k) > 1


@law(
    "under is_causal, the first rows are those of the shorter problem",
    applies=applies,
    about=lambda subject: "is_causal" in subject.space.options and subject.space.dense,
    runs=("the first rows alone", "all rows"),
)
def causal_prefix(case: Case, judge: Judge) -> None:
    x = case.inputs.unplaced()
    len_q, len_k = x.q.shape[2], x.k.shape[2]
    # Aligned at the ends, the rows that are left keep their distance to the last key.
    shift = len_k - len_q if x.bottom_right else 0
    least, end = max(1, 1 - shift), len_q if x.bottom_right else min(len_q, len_k)
    t = least + case.problem.seed % (end - least)
    keys = slice(t + shift)
    short = x.with_(q=x.q[:, :, :t], k=x.k[:, :, keys], v=x.v[:, :, keys])
    first, second = case.exact_bound(x), case.exact_bound(short)
    judged = case.judged_rows(x)[:, :, :t]
    judge.within(
        "out", case.out(short), case.out(x)[:, :, :t], first.out[:, :, :t] + second.out,
        judged=judged[..., None],
    )  # fmt: skip
    lse = case.lse(x), case.lse(short)
    if lse[0] is not None and lse[1] is not None:
        bound = first.lse[:, :, :t] + second.lse
        judge.within("lse", lse[1], lse[0][:, :, :t], bound, judged=judged)


@given(data=st.data())
def test_causal_prefix(kernel: Subject, data: st.DataObject) -> None:
    causal_prefix.test(kernel, data)
