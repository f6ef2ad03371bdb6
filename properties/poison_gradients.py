"""Gradients depend neither on what fresh memory held nor on what lies around the tensors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

from ._alike import alike


@law(
    "NaN in fresh memory and around the tensors leaves the gradients within their bounds",
    backward=True,
    weight=2,
    runs=("NaN in memory", "memory as it comes"),
)
def poison_gradients(case: Case, judge: Judge) -> None:
    clean = case.differentiate(case.dout, fresh_output_nan=False)
    poisoned = case.differentiate(case.dout, guard="nan", fresh_output_nan=True)
    bound = case.gradient_bound(case.dout)
    alike(judge, poisoned.gradients, clean.gradients, bound)
    changed = clean.modified or poisoned.modified
    if changed:
        judge.fail("inputs modified", f"the call changed the memory of {', '.join(changed)}")


@given(data=st.data())
def test_poison_gradients(kernel: Subject, data: st.DataObject) -> None:
    poison_gradients.test(kernel, data)
