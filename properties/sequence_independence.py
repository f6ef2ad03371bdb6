"""A sequence among others, packed or on pages, gives what it gives by itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flashcheck.case import Case
from flashcheck.inputs import Inputs
from flashcheck.judge import Judge
from flashcheck.law import Subject, law

_ALONE = {"seqlens_q": None, "seqlens_k": None, "longest": (0, 0), "pages": None}


def alone(case: Case) -> tuple[int, slice, Inputs]:
    """The batch and the queries of one sequence that has some, and its call: a plain one, or
    packed where the kernel takes no other."""
    x = case.inputs.unscaled()
    assert x.seqlens_k is not None
    if x.seqlens_q is None:
        b = case.problem.seed % len(x.seqlens_k)
        one, n = slice(b, b + 1), x.seqlens_k[b]
        plain = x.with_(q=x.q[one], k=x.k[one, :, :n], v=x.v[one, :, :n], **_ALONE)
        return b, slice(None), plain
    some = [s for s, n in enumerate(x.seqlens_q) if n]
    s = some[case.problem.seed % len(some)]
    first, keys = sum(x.seqlens_q[:s]), sum(x.seqlens_k[:s])
    rows = slice(first, first + x.seqlens_q[s])
    cols = slice(keys, keys + x.seqlens_k[s])
    parts = {"q": x.q[:, :, rows], "k": x.k[:, :, cols], "v": x.v[:, :, cols]}
    if case.space.dense and (case.space.empty_keys or x.seqlens_k[s]):
        return 0, rows, x.with_(**parts, **_ALONE)
    lengths = {"seqlens_q": x.seqlens_q[s : s + 1], "seqlens_k": x.seqlens_k[s : s + 1]}
    return 0, rows, x.with_(**parts, **lengths)


def applies(case: Case) -> bool:
    x, space = case.inputs, case.space
    if x.seqlens_k is None or (x.pages is not None and not space.dense):
        return False
    # is_causal, aligned at the top, goes with windows and ALiBi where lengths are equal.
    if x.is_causal and x.placed and not space.aligned and x.pages is not None:
        return False
    return x.pages is None or space.empty_keys or min(x.seqlens_k) > 0


def has_sequences(subject: Subject) -> bool:
    options, dense = subject.space.options, subject.space.dense
    return "cu_seqlens_q" in options or ("block_table" in options and dense)


@law(
    "a sequence among others gives what it gives by itself",
    applies=applies,
    about=has_sequences,
    runs=("the sequence alone", "all sequences"),
)
def sequence_independence(case: Case, judge: Judge) -> None:
    b, rows, x = alone(case)
    batch = slice(b, b + 1)
    whole = case.inputs.unscaled()
    first, second = case.exact_bound(whole), case.exact_bound(x)
    judged = case.judged_rows()[batch, :, rows]
    judge.within(
        "out", case.out(x), case.out(whole)[batch, :, rows], first.out[batch, :, rows] + second.out,
        judged=judged[..., None],
    )  # fmt: skip
    lse = case.lse(whole), case.lse(x)
    if lse[0] is not None and lse[1] is not None:
        judge.within(
            "lse", lse[1], lse[0][batch, :, rows], first.lse[batch, :, rows] + second.lse,
            judged=judged,
        )  # fmt: skip


@given(data=st.data())
def test_sequence_independence(kernel: Subject, data: st.DataObject) -> None:
    sequence_independence.test(kernel, data)
