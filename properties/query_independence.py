"""A query gives the same among other queries, or fewer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def applies(case: Case) -> bool:
    plain = case.space.dense and not case.inputs.is_causal
    return case.problem.len_q > 1 and plain


@law(
    "a run of queries alone gives what it gives among all",
    applies=applies,
    about=lambda subject: subject.space.dense,  # plain calls are compared
    runs=("these queries alone", "all queries"),
)
def query_independence(case: Case, judge: Judge) -> None:
    x = case.inputs.unplaced()
    lq, seed = x.q.shape[2], case.problem.seed
    start = seed % lq
    rows = slice(start, start + 1 + (seed // 7) % (lq - start))
    mask = x.mask
    if mask is not None and mask.ndim >= 2 and mask.shape[-2] > 1:
        mask = mask[..., rows, :]
    alone = x.with_(q=x.q[:, :, rows], mask=mask)
    bound, judged = case.exact_bound(x), case.judged_rows(x)[:, :, rows]
    first, second = case.run(x), case.run(alone)
    judge.within(
        "out", second.outs[0], first.outs[0][:, :, rows], 2 * bound.out[:, :, rows],
        judged=judged[..., None],
    )  # fmt: skip
    if first.lses:
        judge.within(
            "lse", second.lses[0], first.lses[0][:, :, rows], 2 * bound.lse[:, :, rows],
            judged=judged,
        )  # fmt: skip


@given(data=st.data())
def test_query_independence(kernel: Subject, data: st.DataObject) -> None:
    query_independence.test(kernel, data)
