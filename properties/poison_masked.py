"""Keys and values that no query sees may hold anything finite: nothing changes, bit for bit.

But for the sign of a zero: a weight of 0 times a hidden value is a zero of the value's sign.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.formats import Bools
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def dead(case: Case) -> Bools:
    """[B, Hkv, Lk]: keys hidden from every query of every head that reads them."""
    x = case.inputs
    b, _, hkv, lq, lk, _, _ = x.shape
    rows = x.visible.reshape(b, hkv, x.heads_per_kv * lq, lk)
    seen = np.asarray(rows.any(2), bool)
    if x.layout == "expanded_batch":
        seen = np.broadcast_to(seen.any(0, keepdims=True), seen.shape)
    if x.layout == "expanded_heads":
        seen = np.broadcast_to(seen.any(1, keepdims=True), seen.shape)
    return ~seen


def may_hide(subject: Subject) -> bool:
    """Whether a key can be hidden from every query."""
    options = subject.space.options
    # Aligned bottom-right, the last query sees every key.
    causal = "is_causal" in options and subject.target.kernel.causal_alignment == "top_left"
    hide = {"attn_mask", "window_size", "cu_seqlens_q", "block_table"}
    return causal or bool(hide & options)


@law(
    "hidden keys and values of any finite size change no bit",
    applies=lambda case: bool(dead(case).any()),
    about=may_hide,
    runs=("changed hidden keys", "hidden keys as given"),
)
def poison_masked(case: Case, judge: Judge) -> None:
    x = case.inputs
    hidden = dead(case)[..., None]
    size = min(2.0**16, x.format.max_finite)
    sign = np.where(np.arange(x.k.shape[2]) % 2 == 0, size, -size)[:, None]
    poisoned = x.with_(k=np.where(hidden, sign, x.k), v=np.where(hidden, -sign, x.v))
    inside = np.isfinite(case.exact_bound().lse) & np.isfinite(case.exact_bound(poisoned).lse)
    inside &= case.judged_rows()
    first, second = case.run(), case.run(poisoned)
    said = "hidden keys and values were changed to +-65536 or the largest finite number"
    # -0.0 + 0.0 is 0.0.
    judge.unchanged(
        "out", np.where(inside[..., None], first.outs[0] + 0.0, 0.0),
        np.where(inside[..., None], second.outs[0] + 0.0, 0.0), case.leeway("out"),
        "reads hidden keys", said,
    )  # fmt: skip
    if first.lses:
        judge.unchanged(
            "lse", np.where(inside, first.lses[0] + 0.0, 0.0),
            np.where(inside, second.lses[0] + 0.0, 0.0),
            case.leeway("lse"), "reads hidden keys", said,
        )  # fmt: skip
    if case.kernel.isolates_masked_nan:
        with_nan = case.run(
            x.with_(k=np.where(hidden, np.nan, x.k), v=np.where(hidden, np.nan, x.v))
        )
        said = "hidden keys and values were changed to NaN"
        judge.unchanged(
            "out", first.outs[0] + 0.0, with_nan.outs[0] + 0.0, case.leeway("out"),
            "reads hidden keys", said,
        )  # fmt: skip
        if first.lses:
            judge.unchanged(
                "lse", first.lses[0] + 0.0, with_nan.lses[0] + 0.0, case.leeway("lse"),
                "reads hidden keys", said,
            )  # fmt: skip


@given(data=st.data())
def test_poison_masked(kernel: Subject, data: st.DataObject) -> None:
    poison_masked.test(kernel, data)
