"""What an output buffer held before does not matter: every element is written."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "what the output buffer held before changes no bit",
    weight=2,
    runs=("fresh memory of NaN", "fresh memory as it comes"),
)
def poison_output(case: Case, judge: Judge) -> None:
    # Both calls are made alike, with torch's deterministic algorithms, but for the filling.
    first, second = case.run(fresh_output_nan=False), case.run(fresh_output_nan=True)
    said = "torch.empty was made to return NaN"
    judge.unchanged(
        "out", first.outs[0], second.outs[0], case.leeway("out"), "output not written", said
    )
    if first.lses:
        judge.unchanged(
            "lse", first.lses[0], second.lses[0], case.leeway("lse"), "output not written", said
        )


@given(data=st.data())
def test_poison_output(kernel: Subject, data: st.DataObject) -> None:
    poison_output.test(kernel, data)
