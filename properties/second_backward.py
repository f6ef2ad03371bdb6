"""The backward of one graph leaves the graph as it was: a second one gives the same gradients.

torch's users run it again with retain_graph=True, for each row of a Jacobian among others.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

from ._alike import alike


@law(
    "a second backward of the same graph gives the same gradients",
    backward=True,
    runs=("the second backward", "the first backward"),
)
def second_backward(case: Case, judge: Judge) -> None:
    first, second = case.differentiate(case.dout), case.differentiate(case.dout, passes=2)
    alike(judge, second.gradients, first.gradients, case.gradient_bound(case.dout))


@given(data=st.data())
def test_second_backward(kernel: Subject, data: st.DataObject) -> None:
    second_backward.test(kernel, data)
