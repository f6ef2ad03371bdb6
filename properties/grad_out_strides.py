"""How grad_out lies in memory does not matter: transposed, strided, or one number repeated.

out.sum().backward() passes one element with strides of 0, which autograd expanded.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.grad_out import GRAD_LAYOUTS, constant
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

from ._alike import alike

MOVED = tuple(layout for layout in GRAD_LAYOUTS if layout != "contiguous")


@law(
    "the same grad_out at other strides gives the same gradients",
    backward=True,
    weight=2,  # a check takes one layout
    runs=("grad_out at other strides", "contiguous grad_out"),
)
def grad_out_strides(case: Case, judge: Judge) -> None:
    layout = MOVED[case.problem.seed % len(MOVED)]
    dout = constant(case.dout.shape) if layout == "expanded" else case.dout
    first, second = case.differentiate(dout), case.differentiate(dout, layout=layout)
    alike(judge, second.gradients, first.gradients, case.gradient_bound(dout))


@given(data=st.data())
def test_grad_out_strides(kernel: Subject, data: st.DataObject) -> None:
    grad_out_strides.test(kernel, data)
