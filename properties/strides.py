"""How the tensors lie in memory does not matter: strides, offsets, expanded dimensions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.inputs import LAYOUTS, Layout
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

DIFFERENT = ("contiguous", "expanded_batch", "expanded_heads")
"""Layouts in which the values may not be the same."""


@law(
    "the same values at other strides and offsets give the same result",
    runs=("other strides", "the problem's own strides"),
)
def strides(case: Case, judge: Judge) -> None:
    x = case.inputs
    others = [name for name in LAYOUTS if name not in DIFFERENT and name in case.space.layouts]
    other: Layout = "contiguous"
    if x.layout == other and others:
        other = others[case.problem.seed % len(others)]
    moved = x.with_(layout=other)
    bound, rows = case.exact_bound(), case.judged_rows()
    judge.within("out", case.out(moved), case.out(), 2 * bound.out, judged=rows[..., None])
    lse = case.lse(), case.lse(moved)
    if lse[0] is not None and lse[1] is not None:
        judge.within("lse", lse[1], lse[0], 2 * bound.lse, judged=rows)


@given(data=st.data())
def test_strides(kernel: Subject, data: st.DataObject) -> None:
    strides.test(kernel, data)
