"""The memory around the tensors may hold NaN: nothing changes, bit for bit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "NaN in the memory around and between the tensors changes no bit",
    runs=("NaN around the tensors", "zeros around the tensors"),
)
def poison_memory(case: Case, judge: Judge) -> None:
    first, second = case.run(), case.run(guard="nan")
    around = "around the tensors"
    if case.inputs.pages is not None:
        around += " and of pages that no sequence has"
    said = f"the memory {around} was filled with NaN"
    judge.unchanged(
        "out", first.outs[0], second.outs[0], case.leeway("out"), "reads out of bounds", said
    )
    if first.lses:
        judge.unchanged(
            "lse", first.lses[0], second.lses[0], case.leeway("lse"), "reads out of bounds", said
        )


@given(data=st.data())
def test_poison_memory(kernel: Subject, data: st.DataObject) -> None:
    poison_memory.test(kernel, data)
