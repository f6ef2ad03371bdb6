"""A row whose weights are one-hot returns that row of V."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def applies(case: Case) -> bool:
    return case.problem.len_k > 0 and case.inputs.exact_scale != 0


@law("a row with a single dominating score returns that row of V", applies=applies)
def one_hot(case: Case, judge: Judge) -> None:
    x = case.inputs.with_(softcap=0.0, sinks=None)
    d, n, at = x.q.shape[3], x.k.shape[2], case.problem.seed % x.k.shape[2]
    # Scores are 0 but for the chosen key's, which is about 200.
    level = 2.0 ** np.round(np.log2(200 / (abs(x.exact_scale) * d)) / 2)
    level = min(max(level, 2.0**-6), 128.0)
    other = 200 / (x.exact_scale * d * level)
    fmt = x.format
    k = np.zeros_like(x.k)
    k[:, :, at] = fmt.round(np.clip(other, -fmt.max_finite, fmt.max_finite))
    hot = x.with_(q=np.full_like(x.q, level), k=k, mask=x.unbiased_mask)
    exact = case.attention(hot)
    gap = exact.s[..., at] - np.where(np.arange(n) == at, -np.inf, exact.s).max(-1, initial=-np.inf)
    rows = x.visible[..., at] & ((gap > 100) | (x.visible.sum(-1) == 1))
    expected = np.broadcast_to(exact.v[:, :, None, at], exact.out.shape)
    others = n * np.exp(-100.0) * 2 * np.abs(exact.v).max(2, initial=0.0)[:, :, None]
    judge.within(
        "out", case.out(hot), expected, case.exact_bound(hot).out,
        radius=np.broadcast_to(others, expected.shape), judged=rows[..., None],
    )  # fmt: skip


@given(data=st.data())
def test_one_hot(kernel: Subject, data: st.DataObject) -> None:
    one_hot.test(kernel, data)
