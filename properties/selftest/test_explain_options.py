"""Explanations of options and of rows without keys say no more than the data tells."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch

import flashcheck
from flashcheck.examples import Example
from flashcheck.explanation import Explanation, explain
from flashcheck.explanation.models import Asked, _further
from flashcheck.fills import Fill
from flashcheck.kernel import Kernel
from flashcheck.law import Subject, laws
from flashcheck.problem import Problem
from flashcheck.script import script
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

LAWS = {law.name: law for law in laws()}
NORMAL = Fill(noise="normal", spread=1.0)
ONE = Fill(level=1.0)
SMALL = Problem(dim=1, dim_v=1)


def attention(
    query: Any, key: Any, value: Any, *, fault: str = "", scale: float | None = None,
    is_causal: bool = False, bottom_right: bool = False, softcap: float = 0.0, num_splits: int = 1,
    alibi_slopes: Any = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
    max_seqlen_q: Any = None, max_seqlen_k: Any = None,
) -> Any:  # fmt: skip
    """(out, lse) of whole rows with one mistake, or none."""
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    q, k, v = (t.to(wide) for t in (query, key, value))
    lq, lk = q.shape[2], k.shape[2]
    shift = lk - lq if bottom_right else 0
    i, j = torch.arange(lq)[:, None], torch.arange(lk)
    seen = j <= i + shift if is_causal else torch.ones(lq, lk, dtype=torch.bool)
    if cu_seqlens_q is not None:
        at = torch.searchsorted(cu_seqlens_q[1:].contiguous(), i[:, 0].int(), right=True)
        ends = cu_seqlens_k[1:]
        if fault == "empty sequences not counted":
            ends = torch.unique(cu_seqlens_k)
            ends = ends[ends > 0]
        seen = seen & (at[:, None] == torch.searchsorted(ends.contiguous(), j.int(), right=True))
    if fault == "first key seen" and is_causal:
        seen[:, 0] = True
    s = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    top = s.masked_fill(~seen, -math.inf).amax(-1, keepdim=True)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if alibi_slopes is not None:
        bias = alibi_slopes.to(wide)[:, None, None] * (i + lk - lq - j).abs()
        s = s - (bias.to(query.dtype).to(wide) if fault == "rounded ALiBi" else bias)
    s = s.masked_fill(~seen, -math.inf)
    if fault != "maximum before the cap":
        top = s.amax(-1, keepdim=True)
    if fault == "maximum not subtracted":
        top = torch.zeros_like(top)
    outs, lses = [], []
    for part, values in zip(
        s.tensor_split(num_splits, -1), v.tensor_split(num_splits, 2), strict=True
    ):
        p = torch.exp(part - top.masked_fill(top == -math.inf, 0))
        l = p.sum(-1, keepdim=True)
        outs.append(p @ values / (l if fault.startswith("maximum") else l.where(l > 0, 1)))
        lse = (top + l.log()).masked_fill(l == 0, -math.inf)[..., 0]
        if fault == "hidden split counted" and num_splits > 1 and part.shape[-1]:
            lse = lse.masked_fill(lse == -math.inf, 0)
        lses.append(lse)
    merged = torch.stack(lses).logsumexp(0)
    w = torch.exp(torch.stack(lses) - merged.masked_fill(merged == -math.inf, 0))
    out = (torch.stack(outs) * w[..., None]).sum(0)
    empty = ~seen.any(-1)
    if fault == "empty rows are 7":
        out[:, :, empty] = 7.0
    if fault == "empty rows are NaN":
        out[:, :, empty] = math.nan
    if fault == "hidden scores finite":
        s = s.masked_fill(s == -math.inf, -1e30)
        out = torch.softmax(s, -1) @ v
    merged[..., empty] = -math.inf
    return out.to(query.dtype), merged


def subject(fault: str, *options: str, dtype: str = "float32", aligned: bool = False) -> Subject:
    def fn(query: Any, key: Any, value: Any, **given: Any) -> Any:
        given = {name: given[name] for name in given if name in options or name == "scale"}
        return attention(query, key, value, fault=fault, bottom_right=aligned, **given)

    alignment: Any = "bottom_right" if aligned else "top_left"
    kernel = Kernel(fn, name="own", options=("scale", *options), causal_alignment=alignment)
    runner = InProcess(kernel)
    taken = frozenset({"scale", *options})
    return Subject(runner, runner.start(), Space(dtype=dtype, options=taken, aligned=aligned))


def explained(of: Subject, problem: Problem, law: str = "agreement") -> Explanation:
    check = LAWS[law].check(of.case(problem))
    assert check.failed, check
    found = explain(
        of, LAWS[law], problem, None, check, example_id="fc-a", command="flashcheck gate own"
    )
    print(found.text)
    assert "Not explained" not in found.text
    assert all(len(line) <= 100 for line in found.text.splitlines())
    return found


CAPPED = replace(SMALL, scale=1.0, softcap=100.0, q=ONE, k=Fill(level=196.0), v=NORMAL)


# At 196 the weight is subnormal, at 215 it is 0.
@pytest.mark.parametrize("score", [196.0, 215.0])
def test_a_cap_is_no_overflow(score: float) -> None:
    found = explained(
        subject("maximum before the cap", "softcap"), replace(CAPPED, k=Fill(level=score))
    )
    assert "overflows" not in found.text
    assert "not subtracted" not in found.text
    if score == 196.0:
        assert found.cause.startswith("The maximum is taken before softcap is applied (as in")
    assert "every row" not in found.text


def test_an_overflow_under_a_cap_is_one() -> None:
    found = explained(subject("maximum not subtracted", "softcap"), CAPPED)
    assert found.sentence == (
        "Output is NaN in query 0, whose largest score exceeds 88.72 (exp overflows in float32): "
        "the maximum is not subtracted."
    )


HIDDEN = replace(SMALL, len_q=2, len_k=1, is_causal=True, v=ONE)


def test_one_key_is_no_mean() -> None:
    found = explained(subject("first key seen", "is_causal", aligned=True), HIDDEN)
    assert found.sentence == (
        "Output takes in key 0 in query 0, which sees no key, where it should be 0."
    )
    assert found.hints == ()


def test_a_mean_of_all_values_is_one() -> None:
    several = replace(HIDDEN, len_q=5, len_k=3, v=NORMAL)
    found = explained(subject("hidden scores finite", "is_causal", aligned=True), several)
    assert found.sentence == (
        "Output is the mean of all values, hidden ones too, in every row that sees no key, where "
        "it should be 0."
    )
    # Hidden values leak: nothing to be declared.
    assert found.hints == ()


PACKED = replace(SMALL, len_q=1, len_k=1, seqlens_q=(1, 0), seqlens_k=(0, 1))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_value_of_another_sequence(value: float) -> None:
    of = subject(
        "empty sequences not counted",
        "cu_seqlens_q",
        "cu_seqlens_k",
        "max_seqlen_q",
        "max_seqlen_k",
    )
    problem = replace(PACKED, v=Fill(level=value))
    if value:
        found = explained(of, problem)
        assert found.hints == ()
    poisoned = explained(of, problem, "poison_masked")
    # The numbers are those of out.
    assert "at o[" in poisoned.text
    for text in (poisoned.sentence, *([found.sentence] if value else [])):
        assert text.startswith(
            "Output takes in key 0, of another sequence, in query 0, which sees no key"
        )


def test_rows_without_keys_that_hold_something_of_their_own() -> None:
    (hint,) = explained(subject("empty rows are 7", "is_causal", aligned=True), HIDDEN).hints
    assert "if your kernel promises nothing about such rows" in hint
    assert 'masked_rows="unspecified"' in hint
    (hint,) = explained(subject("empty rows are NaN", "is_causal", aligned=True), HIDDEN).hints
    assert 'masked_rows="nan"' in hint


def test_a_declared_nan_is_asked_of_rows_without_a_sink_alone() -> None:
    def with_sinks(
        query: Any, key: Any, value: Any, *, sinks: Any = None, is_causal: bool = False
    ) -> Any:
        out, lse = attention(query, key, value, is_causal=is_causal, bottom_right=True)
        if sinks is not None:
            both = torch.logaddexp(lse, sinks.to(lse.dtype)[:, None])
            out, lse = out * torch.exp(lse - both)[..., None].to(out.dtype), both
        return out, lse

    declared = Kernel(with_sinks, name="own", causal_alignment="bottom_right", masked_rows="nan")
    runner = InProcess(declared)
    options = frozenset({"is_causal", "sinks"})
    of = Subject(runner, runner.start(), Space(options=options, causal_square=False))
    assert not LAWS["agreement"].check(of.case(replace(HIDDEN, sinks=Fill()))).failed
    found = explained(of, HIDDEN)
    assert found.sentence.startswith("A row that sees no key is not NaN, as the kernel declares it")


SPLIT = replace(SMALL, len_q=2, len_k=2, is_causal=True, num_splits=2)


def test_the_wrong_one_of_two_runs_is_named() -> None:
    of = subject("hidden split counted", "is_causal", "num_splits")
    found = explained(of, SPLIT, "causal_prefix")
    assert found.sentence == "lse is too large by 0.693 (ln 2) in query 0."
    assert "got 0 from the first rows alone   expected 0.693147 from all rows" in found.text
    assert "by the oracle it is 0: the result from all rows is wrong" in found.text
    found = explained(of, replace(SPLIT, num_splits=1), "split_independence")
    assert "by the oracle it is 0: the result from another number of splits is wrong" in found.text


def test_a_script_names_the_two_runs() -> None:
    of = subject("hidden split counted", "is_causal", "num_splits")
    check = LAWS["causal_prefix"].check(of.case(SPLIT))
    example = Example(
        problem=SPLIT, property="causal_prefix", target="own.py:own", name="own", check=check,
    )  # fmt: skip
    text = script(example, of.target).text
    assert "# got: the result from the first rows alone" in text
    assert "# expected: the result from all rows" in text
    assert "# by the oracle it is 0: the result from all rows is wrong" in text


def test_laws_that_compare_two_runs_name_them() -> None:
    named = {name for name, law in LAWS.items() if law.runs}
    assert {name for name in LAWS if name.endswith("_independence")} <= named
    assert {"causal_prefix", "strides", "repeat", "neutral_options", "key_split"} <= named


ALIBI = replace(
    SMALL, len_k=3, dtype="bfloat16", alibi_slopes=Fill(noise="positive", spread=0.25), q=ONE,
    k=Fill("spike", level=4.0, at=0),
)  # fmt: skip


def test_no_wider_bound_is_offered_for_a_named_mistake() -> None:
    found = explained(subject("rounded ALiBi", "alibi_slopes", dtype="bfloat16"), ALIBI)
    assert found.cause.startswith("ALiBi is rounded to the input dtype")
    assert found.hints == ()
    assert "every row" not in found.sentence


def test_no_wider_bound_is_offered_where_other_problems_hold_without() -> None:
    """Beside a small cap the weights lose a few bits, which one wider contract would allow."""
    problem = replace(
        CAPPED, dtype="float16", scale=None, softcap=1.0, v=Fill(), k=Fill(level=97.0)
    )
    found = explained(subject("maximum before the cap", "softcap", dtype="float16"), problem)
    assert found.cause.startswith("The maximum is taken before softcap")
    assert found.hints == ()


def test_models_are_asked_legal_calls_alone() -> None:
    """No declaration says how is_causal and a window go together where Lq is not Lk."""
    of = subject("maximum not subtracted", "is_causal", "window_size")
    problem = replace(SMALL, dim=3, len_q=4, len_k=4, is_causal=True, window=(2, 0))
    of = replace(of, space=replace(of.space, head_dims=(8,)))
    assert not of.space.takes(problem)  # by its head size
    case = of.case(problem)
    asked = islice(_further(case, Asked.of(case, case.inputs, "zeros")), 12)
    shapes = [(a.x.q.shape[2:], a.x.k.shape[2]) for a in asked if a.x.is_causal and a.x.placed]
    assert shapes
    assert all(queries == keys for (queries, _), keys in shapes)


def test_options_that_were_captured_are_not_said_to_be_0() -> None:
    q, k, v = torch.randn(3, 1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    given = flashcheck.inputs_of(q, k, v, sinks=torch.ones(2), alibi_slopes=torch.ones(2))
    with pytest.raises(flashcheck.CheckFailed) as failed:
        flashcheck.assert_within_bound(torch.ones(1, 2, 4, 8), given)
    text = " ".join(str(failed.value).split())
    assert "ALiBi slopes (captured), sinks (captured)" in text
    assert "0 everywhere" not in text
