"""A head alone gives what it gives among others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law(
    "one key head with its query heads alone gives what it gives among all",
    applies=lambda case: case.problem.kv_heads > 1,
    runs=("the head alone", "all heads"),
)
def head_independence(case: Case, judge: Judge) -> None:
    x = case.inputs.unscaled()
    g = case.problem.seed % x.k.shape[1]
    heads = slice(g * x.heads_per_kv, (g + 1) * x.heads_per_kv)
    mask = x.mask
    if mask is not None and mask.ndim >= 3 and mask.shape[-3] > 1:
        mask = mask[..., heads, :, :]
    alone = x.with_(
        q=x.q[:, heads], k=x.k[:, g : g + 1], v=x.v[:, g : g + 1], mask=mask,
        alibi_slopes=None if x.alibi_slopes is None else x.alibi_slopes[heads],
        sinks=None if x.sinks is None else x.sinks[heads],
    )  # fmt: skip
    bound, rows = case.exact_bound(x), case.judged_rows(x)[:, heads]
    first, second = case.run(x), case.run(alone)
    judge.within(
        "out", second.outs[0], first.outs[0][:, heads], 2 * bound.out[:, heads],
        judged=rows[..., None],
    )  # fmt: skip
    if first.lses:
        judge.within(
            "lse", second.lses[0], first.lses[0][:, heads], 2 * bound.lse[:, heads], judged=rows
        )


@given(data=st.data())
def test_head_independence(kernel: Subject, data: st.DataObject) -> None:
    head_independence.test(kernel, data)
