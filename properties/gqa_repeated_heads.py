"""Grouped-query attention equals attention with the key heads repeated."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "enable_gqa equals repeating each key head",
    applies=lambda case: case.inputs.enable_gqa,
    about=lambda subject: "enable_gqa" in subject.space.options,
    runs=("repeated key heads", "enable_gqa"),
)
def gqa_repeated_heads(case: Case, judge: Judge) -> None:
    x = case.inputs.unscaled()
    k, v = (np.repeat(t, x.heads_per_kv, axis=1) for t in (x.k, x.v))
    layout = "contiguous" if x.layout == "expanded_heads" else x.layout
    repeated = x.with_(k=k, v=v, enable_gqa=False, layout=layout)
    bound, rows = case.exact_bound(x), case.judged_rows(x)
    judge.within("out", case.out(repeated), case.out(x), 2 * bound.out, judged=rows[..., None])
    lse = case.lse(x), case.lse(repeated)
    if lse[0] is not None and lse[1] is not None:
        judge.within("lse", lse[1], lse[0], 2 * bound.lse, judged=rows)


@given(data=st.data())
def test_gqa_repeated_heads(kernel: Subject, data: st.DataObject) -> None:
    gqa_repeated_heads.test(kernel, data)
