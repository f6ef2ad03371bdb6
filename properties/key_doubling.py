"""Every key twice: out is as it was, and lse grows by ln 2."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def applies(case: Case) -> bool:
    return 0 < case.problem.len_k <= 256 and not case.inputs.is_causal and case.space.dense


@law(
    "doubling every key leaves out as it was and adds ln 2 to lse",
    applies=applies,
    about=lambda subject: subject.space.dense,  # plain calls are compared
    runs=("every key twice", "every key once"),
)
def key_doubling(case: Case, judge: Judge) -> None:
    x = case.inputs.unplaced()
    if x.sinks is not None:
        x = x.with_(sinks=None)
    mask = x.mask
    # A mask that is the same for every key goes on being so.
    if mask is not None and mask.shape[-1] == x.k.shape[2]:
        mask = np.concatenate([mask, mask], -1)
    twice = x.with_(
        k=np.concatenate([x.k, x.k], 2),
        v=np.concatenate([x.v, x.v], 2),
        mask=mask,
    )
    first, second, rows = case.exact_bound(x), case.exact_bound(twice), case.judged_rows(x)
    judge.within(
        "out", case.out(twice), case.out(x), first.out + second.out, judged=rows[..., None]
    )
    lse = case.lse(x), case.lse(twice)
    if lse[0] is not None and lse[1] is not None:
        expected = lse[0] + np.log(2.0)
        size = np.abs(np.where(np.isfinite(expected), expected, 0.0))
        judge.within(
            "lse", lse[1], expected, first.lse + second.lse,
            radius=2.0**-50 * (size + 1), judged=rows,
        )  # fmt: skip


@given(data=st.data())
def test_key_doubling(kernel: Subject, data: st.DataObject) -> None:
    key_doubling.test(kernel, data)
