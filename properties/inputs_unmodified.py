"""The inputs, and the memory around them, are after the call what they were before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law("the inputs are unchanged after the call", weight=2)
def inputs_unmodified(case: Case, judge: Judge) -> None:
    changed = case.run().modified
    if changed:
        judge.fail("inputs modified", f"the call changed the memory of {', '.join(changed)}")


@given(data=st.data())
def test_inputs_unmodified(kernel: Subject, data: st.DataObject) -> None:
    inputs_unmodified.test(kernel, data)
