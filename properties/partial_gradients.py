"""Gradients do not depend on which other tensors require one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.grad_out import Wrt
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

from ._alike import alike

SUBSETS: tuple[tuple[Wrt, ...], ...] = (
    ("q",), ("k",), ("v",), ("k", "v"), ("q", "k"), ("q", "v"),
)  # fmt: skip


@law(
    "where only some of q, k and v require a gradient, it is the same",
    backward=True,
    weight=2,  # a check takes one subset of six
    runs=("some gradients alone", "all gradients"),
)
def partial_gradients(case: Case, judge: Judge) -> None:
    wrt = SUBSETS[case.problem.seed % len(SUBSETS)]
    some, all_three = case.differentiate(case.dout, wrt=wrt), case.differentiate(case.dout)
    alike(judge, some.gradients, all_three.gradients, case.gradient_bound(case.dout))


@given(data=st.data())
def test_partial_gradients(kernel: Subject, data: st.DataObject) -> None:
    partial_gradients.test(kernel, data)
