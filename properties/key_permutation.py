"""Attention does not depend on the order of the keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def applies(case: Case) -> bool:
    return case.problem.len_k > 1 and not case.inputs.is_causal and case.space.dense


@law(
    "permuting keys, values and mask together changes nothing",
    applies=applies,
    about=lambda subject: subject.space.dense,  # plain calls are compared
    runs=("permuted keys", "keys in their order"),
)
def key_permutation(case: Case, judge: Judge) -> None:
    x = case.inputs.unplaced()
    n = x.k.shape[2]
    # Reversal brings the last block to the front; the rotation breaks block boundaries.
    order = np.roll(np.arange(n)[::-1], case.problem.seed % n)
    permuted = x.with_(
        k=x.k[:, :, order],
        v=x.v[:, :, order],
        mask=x.mask if x.mask is None else x.mask[..., order] if x.mask.shape[-1] == n else x.mask,
    )
    bound, rows = case.exact_bound(x), case.judged_rows(x)
    # The bound of a row does not depend on the order of its keys.
    judge.within("out", case.out(permuted), case.out(x), 2 * bound.out, judged=rows[..., None])
    lse = case.lse(x), case.lse(permuted)
    if lse[0] is not None and lse[1] is not None:
        judge.within("lse", lse[1], lse[0], 2 * bound.lse, judged=rows)


@given(data=st.data())
def test_key_permutation(kernel: Subject, data: st.DataObject) -> None:
    key_permutation.test(kernel, data)
