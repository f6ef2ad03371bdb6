"""The number of KV splits changes nothing beyond rounding."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

MOST = 513
"""Splits, so that a long row takes no minutes."""


def other(case: Case) -> int:
    """Another number of splits, beyond the number of keys now and then."""
    n = min(case.inputs.k.shape[2], MOST)
    choices = [c for c in (1, 2, 3, 5, n, n + 3) if c != case.inputs.num_splits and c > 0]
    return choices[case.problem.seed % len(choices)]


@law(
    "any number of splits gives the same",
    applies=lambda case: "num_splits" in case.space.options,
    about=lambda subject: "num_splits" in subject.space.options,
    runs=("another number of splits", "the problem's own splits"),
)
def split_independence(case: Case, judge: Judge) -> None:
    x = case.inputs.with_(num_splits=other(case))
    first, second, rows = case.exact_bound(), case.exact_bound(x), case.judged_rows()
    judge.within("out", case.out(x), case.out(), first.out + second.out, judged=rows[..., None])
    lse = case.lse(), case.lse(x)
    if lse[0] is not None and lse[1] is not None:
        judge.within("lse", lse[1], lse[0], first.lse + second.lse, judged=rows)


@given(data=st.data())
def test_split_independence(kernel: Subject, data: st.DataObject) -> None:
    split_independence.test(kernel, data)
