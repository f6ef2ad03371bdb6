"""Attention over two parts of the keys, merged by their lse, is attention over all of them.

With lse = log(e^lse_1 + e^lse_2) and w_i = e^(lse_i - lse), out is w_1 out_1 + w_2 out_2. Where
the lse of the parts are off by d_1 and d_2, w_1 is off by at most w_1 w_2 (e^|d_1 - d_2| - 1), and
lse by the larger of both. The exact lse stand in for those of a kernel that returns none.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.inputs import Inputs
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def applies(case: Case) -> bool:
    return case.problem.len_k > 1 and not case.inputs.is_causal and case.space.dense


def part(x: Inputs, keys: slice) -> Inputs:
    mask = x.mask
    if mask is not None and mask.shape[-1] == x.k.shape[2]:
        mask = mask[..., keys]
    return x.with_(k=x.k[:, :, keys], v=x.v[:, :, keys], mask=mask)


@law(
    "two parts of the keys, merged by their lse, give the whole",
    applies=applies,
    about=lambda subject: subject.space.dense,  # plain calls are compared
    runs=("all keys", "two parts of the keys, merged"),
)
def key_split(case: Case, judge: Judge) -> None:
    x = case.inputs.unplaced().with_(sinks=None)
    at = 1 + case.problem.seed % (x.k.shape[2] - 1)
    parts = [part(x, slice(0, at)), part(x, slice(at, None))]
    whole, bounds = case.exact_bound(x), [case.exact_bound(p) for p in parts]
    exact = [case.attention(p) for p in parts]
    returned = [case.lse(p) for p in parts]
    known = all(lse is not None for lse in returned)
    # A row without keys may hold anything, where that is declared.
    seen = [e.seen for e in exact]
    outs = [np.where(s[..., None], case.out(p), 0.0) for s, p in zip(seen, parts, strict=True)]
    pairs = zip(exact, returned, strict=True)
    lses = [
        np.where(e.seen, e.lse if lse is None or not known else lse, -np.inf) for e, lse in pairs
    ]
    errors = [b.lse if known else e.lse_radius for e, b in zip(exact, bounds, strict=True)]
    off = [np.where(s, error, 0.0) for s, error in zip(seen, errors, strict=True)]
    with np.errstate(invalid="ignore", over="ignore"):
        lse = np.logaddexp(*lses)
        w = [np.where(np.isneginf(one), 0.0, np.exp(one - lse))[..., None] for one in lses]
        merged = w[0] * outs[0] + w[1] * outs[1]
        shift = w[0] * w[1] * np.expm1(off[0] + off[1])[..., None]
        bound = whole.out + w[0] * bounds[0].out + w[1] * bounds[1].out
        bound = bound + shift * np.abs(exact[0].out - exact[1].out)
        gap = np.nan_to_num(np.abs(lses[0] - lses[1]), posinf=0.0)[..., None]
    rows = case.judged_rows(x)
    radius = 2.0**-50 * (gap + 4) * (np.abs(outs[0]) + np.abs(outs[1]))
    judge.within("out", case.out(x), merged, bound, radius=radius, judged=rows[..., None])
    found = case.lse(x)
    if known and found is not None:
        size = np.abs(np.where(np.isfinite(lse), lse, 0.0))
        judge.within(
            "lse", found, lse, whole.lse + np.maximum(off[0], off[1]),
            radius=2.0**-50 * (size + 1), judged=rows,
        )  # fmt: skip


@given(data=st.data())
def test_key_split(kernel: Subject, data: st.DataObject) -> None:
    key_split.test(kernel, data)
