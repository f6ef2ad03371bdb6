"""A batch element alone gives what it gives among others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "one batch element alone gives what it gives in the batch",
    applies=lambda case: case.problem.batch > 1,
    runs=("the batch element alone", "the whole batch"),
)
def batch_independence(case: Case, judge: Judge) -> None:
    x = case.inputs.unscaled()
    b = case.problem.seed % x.q.shape[0]
    one = slice(b, b + 1)
    mask = x.mask
    if mask is not None and mask.ndim == 4 and mask.shape[0] > 1:
        mask = mask[one]
    alone = x.with_(
        q=x.q[one], k=x.k[one], v=x.v[one], mask=mask,
        seqlens_k=None if x.seqlens_k is None else x.seqlens_k[one],
        pages=None if x.pages is None else replace(x.pages, table=x.pages.table[one]),
    )  # fmt: skip
    bound, rows = case.exact_bound(x), case.judged_rows(x)[one]
    first, second = case.run(x), case.run(alone)
    judge.within(
        "out", second.outs[0], first.outs[0][one], 2 * bound.out[one], judged=rows[..., None]
    )
    if first.lses:
        judge.within("lse", second.lses[0], first.lses[0][one], 2 * bound.lse[one], judged=rows)
    if case.kernel.batch_invariant:
        judge.identical(
            "out", first.outs[0][one], second.outs[0], "not batch invariant",
            "the batch element was computed alone",
        )  # fmt: skip


@given(data=st.data())
def test_batch_independence(kernel: Subject, data: st.DataObject) -> None:
    batch_independence.test(kernel, data)
