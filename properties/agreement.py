"""out and lse agree with the exact result within the derived bound."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


@law("out and lse lie within the derived bound of the exact result")
def agreement(case: Case, judge: Judge) -> None:
    reply = case.run()
    bound, value, rows = case.exact_bound(), case.value(), case.judged_rows()
    out = reply.outs[0]
    judge.within(
        "out", out, value.out, bound.out, radius=value.out_radius, low=value.out_low,
        judged=rows[..., None], vacuous=bound.vacuous,
    )  # fmt: skip
    if case.kernel.masked_rows == "nan":
        unseen = ~case.attention().seen[..., None]
        # With a sink the weights sum to one, and 0 is what they give.
        judge.nan("out", out, unseen if case.inputs.sinks is None else unseen & (out != 0))
    if reply.lses:
        judge.within(
            "lse", reply.lses[0], value.lse, bound.lse, radius=value.lse_radius,
            low=value.lse_low, judged=rows,
        )  # fmt: skip
        usable_lse = np.isfinite(value.lse) & np.isfinite(bound.lse)
        error = np.abs(reply.lses[0][usable_lse] - value.lse[usable_lse])
        judge.stats["lse_error_max"] = float(error.max(initial=0.0))
    # Units in the last place mean little where terms cancel or the scores are ill-conditioned.
    unit = case.inputs.format.ulp(value.out)
    settled = (np.abs(value.out) * 16 >= case.attention().abs_out) & (bound.out <= 4096 * unit)
    usable = np.isfinite(out) & np.isfinite(bound.out) & rows[..., None] & settled
    usable &= value.out != 0
    signed = ((out - value.out) - value.out_low)[usable]
    with np.errstate(over="ignore"):
        ulps = signed / unit[usable]
    ulps = ulps[np.isfinite(ulps)]
    if ulps.size:
        size = np.sort(np.abs(ulps))
        # Equally spaced order statistics: enough for quantiles over a run, and small.
        judge.stats["ulp"] = size[
            np.linspace(0, size.size - 1, min(size.size, 32)).astype(int)
        ].tolist()
        judge.stats["ulp_max"] = float(size[-1])
        judge.stats["signed_mean"] = float(ulps.mean())
        judge.stats["n"] = int(ulps.size)


@given(data=st.data())
def test_agreement(kernel: Subject, data: st.DataObject) -> None:
    agreement.test(kernel, data)
