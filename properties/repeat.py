"""The same call twice on the same memory gives the same bits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "the same call twice gives the same bits",
    applies=lambda case: case.kernel.deterministic,
    about=lambda subject: subject.target.kernel.deterministic,
    runs=("the second call", "the first call"),
)
def repeat(case: Case, judge: Judge) -> None:
    reply = case.run(times=2)
    said = "the same call was made twice"
    judge.identical("out", reply.outs[0], reply.outs[1], "nondeterministic", said)
    if reply.lses:
        judge.identical("lse", reply.lses[0], reply.lses[1], "nondeterministic", said)
    judge.nondeterministic()


@given(data=st.data())
def test_repeat(kernel: Subject, data: st.DataObject) -> None:
    repeat.test(kernel, data)
