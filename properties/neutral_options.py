"""An option at its neutral value equals the option left out."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.inputs import Inputs
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

FURTHER = ("window_size", "softcap", "alibi_slopes", "sinks", "num_splits")
NEUTRAL = frozenset({"scale", "is_causal", "enable_gqa", "attn_mask", *FURTHER})
"""Options that have a neutral value in every call."""


def neutral(case: Case) -> dict[str, Inputs]:
    """The problem with one option more, at the value that means nothing: one that the kernel
    takes, which is not all that it names."""
    x, options = case.inputs, case.space.options
    same: dict[str, Inputs] = {}
    if "scale" in options and x.scale is None:
        same["scale"] = x.with_(scale=x.exact_scale)
    if "is_causal" in options and not x.is_causal:
        same["is_causal"] = x.with_(passed=frozenset({"is_causal"}))
    for name in FURTHER:
        if name in options and name not in x.used:
            same[name] = x.with_(passed=frozenset({name}))
    n = x.k.shape[2] + x.q.shape[2]
    if "window_size" in options and "window_size" not in x.used and not x.is_causal:
        same["wide window"] = x.with_(window=(n, n))  # it ends nowhere inside
    if "enable_gqa" in options and not x.enable_gqa:
        same["enable_gqa"] = x.with_(enable_gqa=True)
        same["no enable_gqa"] = x.with_(passed=frozenset({"enable_gqa"}))
    if "attn_mask" in options and x.mask is None:
        same["no mask"] = x.with_(passed=frozenset({"attn_mask"}))
        alone = not x.is_causal and x.seqlens_k is None
        if alone and ("bool", "float32", 4) in case.space.mask_forms:
            full = np.ones((x.q.shape[0], 1, x.q.shape[2], x.k.shape[2]), bool)
            same["full mask"] = x.with_(mask=full)
    return same


def one(case: Case) -> Inputs:
    """One of them by the problem's seed, the same whatever others there are."""
    choices, seed = neutral(case), case.problem.seed
    return choices[min(choices, key=lambda name: random.Random(f"{seed} {name}").random())]


@law(
    "an option at its neutral value equals the option left out",
    applies=lambda case: bool(neutral(case)),
    about=lambda subject: not NEUTRAL.isdisjoint(subject.space.options),
    runs=("the option passed", "the option left out"),
)
def neutral_options(case: Case, judge: Judge) -> None:
    x = one(case)
    first, second, rows = case.exact_bound(), case.exact_bound(x), case.judged_rows()
    judge.within("out", case.out(x), case.out(), first.out + second.out, judged=rows[..., None])
    lse = case.lse(), case.lse(x)
    if lse[0] is not None and lse[1] is not None:
        judge.within("lse", lse[1], lse[0], first.lse + second.lse, judged=rows)


@given(data=st.data())
def test_neutral_options(kernel: Subject, data: st.DataObject) -> None:
    neutral_options.test(kernel, data)
