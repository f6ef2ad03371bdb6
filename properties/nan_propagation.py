"""NaN in what a row sees reaches its output, where the kernel declares that it does.

A score that is NaN makes the row's normalizer NaN, and so every element of out and lse; a value
that is NaN spoils its own channel alone, whatever its weight: 0 * NaN is NaN.
"""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.formats import Array, Bools
from flashcheck.judge import Judge
from flashcheck.law import Subject, law


def seen_most(case: Case) -> tuple[int, Bools]:
    """The key that most rows see, and the rows [B, Hq, Lq] that see it."""
    visible = case.inputs.visible
    key = int(visible.sum((0, 1, 2)).argmax())
    return key, np.asarray(visible[..., key], bool)


@law(
    "NaN in a key or a value reaches the output of every row that sees it",
    applies=lambda case: case.kernel.propagates_nan and bool(case.inputs.visible.any()),
    about=lambda subject: subject.target.kernel.propagates_nan,
)
def nan_propagation(case: Case, judge: Judge) -> None:
    x = case.inputs
    key, rows = seen_most(case)
    k, v = x.k.copy(), x.v.copy()
    k[:, :, key, 0] = v[:, :, key, -1] = np.nan
    for name, poisoned in (("a key", x.with_(k=k)), ("a value", x.with_(v=v))):
        found = case.run(poisoned)
        out = found.outs[0]
        reached: list[tuple[str, Array, Bools]] = [("out", out[..., -1], rows)]
        if name == "a key":
            reached = [("out", out, np.broadcast_to(rows[..., None], out.shape))]
            reached += [("lse", lse, rows) for lse in found.lses[:1]]
        for output, got, where in reached:
            judge.identical(
                output, np.where(where, np.nan, got), got, "loses NaN",
                f"{name} that the row sees was changed to NaN",
            )  # fmt: skip


@given(data=st.data())
def test_nan_propagation(kernel: Subject, data: st.DataObject) -> None:
    nan_propagation.test(kernel, data)
