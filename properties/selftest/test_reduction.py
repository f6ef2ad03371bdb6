"""A failure on captured tensors is cut down to what it needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from flashcheck.examples import of_tensors
from flashcheck.explanation import explain
from flashcheck.formats import FORMATS
from flashcheck.inputs import Inputs
from flashcheck.kernel import Kernel
from flashcheck.law import Subject, laws
from flashcheck.reduction import reduce_captured
from flashcheck.strategies import Space
from flashcheck.verdict import Check, Verdict, Worst
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

(AGREEMENT,) = (law for law in laws() if law.name == "agreement")


def reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale,
        enable_gqa=enable_gqa,
    )  # fmt: skip


def drops_tail(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """The last keys are left out where they do not fill a block of 16."""
    whole = key.shape[2] // 16 * 16 or key.shape[2]
    mask = options.pop("attn_mask", None)
    mask = mask if mask is None else mask[..., :whole]
    return reference(query, key[:, :, :whole], value[:, :, :whole], attn_mask=mask, **options)


def ignores_causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    return reference(query, key, value, **{**options, "is_causal": False})


def wrong_head(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """Values above 4, which one head alone has, are cut."""
    return reference(query, key, value.clamp(max=4.0), **options)


def overflows(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> Any:
    """exp without its maximum, NaN from scores of 89 on; and everything is off by 0.1."""
    p = (query @ key.mT / math.sqrt(query.shape[-1])).exp()
    return p @ value / p.sum(-1, keepdim=True) + 0.1


OPTIONS = ("attn_mask", "is_causal", "scale", "enable_gqa")


def captured(
    heads: int = 1, kv_heads: int = 1, lq: int = 40, lk: int = 77, d: int = 16, **options: Any
) -> Inputs:
    """Noise, as a model's tensors are to a shrinker."""
    noise = np.random.default_rng(0)
    shapes = ((2, heads, lq, d), (2, kv_heads, lk, d), (2, kv_heads, lk, d))
    q, k, v = (FORMATS["float32"].round(noise.normal(size=shape)) for shape in shapes)
    return Inputs("float32", q, k, v, enable_gqa=heads != kv_heads, **options)


def reduced(function: Any, x: Inputs, names: tuple[str, ...] = OPTIONS, **space: Any) -> Any:
    """The failure of a kernel on `x`: (subject, problem, inputs, check), reduced."""
    runner = InProcess(Kernel(function, options=names))
    subject = Subject(runner, runner.start(), Space(dtype="float32", **space))
    problem, inputs = of_tensors(x)
    check = AGREEMENT.check(subject.case(problem, None, inputs))
    assert check.failed
    out = reduce_captured(subject, AGREEMENT, problem, inputs, None, check)
    again = AGREEMENT.check(subject.case(out[0], None, out[1]))
    assert (again.verdict, again.symptom) == (check.verdict, check.symptom)
    assert repr(again.worst) == repr(out[2].worst)
    assert of_tensors(out[1])[0] == out[0], "the outline is that of the tensors"
    return subject, *out


def test_a_dropped_tail_needs_few_keys() -> None:
    mask = np.ones((2, 1, 40, 77), bool)
    mask[1, :, :, 70:] = False
    x = captured(4, 2, scale=0.5, mask=mask, layout="transposed")
    _, problem, inputs, check = reduced(drops_tail, x)
    assert inputs.shape[:5] == (1, 1, 1, 1, 17)
    assert (inputs.mask, inputs.scale, inputs.layout) == (None, None, "contiguous")
    assert inputs.shape[5:] == (1, 1)
    assert check.worst.index == (0, 0, 0, 0)
    # The values are the model's own.
    assert np.isin(inputs.k, x.k).all()
    assert np.isin(inputs.v, x.v).all()
    assert problem.scores == "captured"


def test_the_head_that_fails_is_found() -> None:
    x = captured(4, 2, lq=3, lk=5)
    v = x.v.copy()
    v[1, 1, 2, 3] = 9.0
    _, _, inputs, _ = reduced(wrong_head, x.with_(v=v))
    assert inputs.shape[:5] == (1, 1, 1, 1, 1)
    assert 9.0 in inputs.v


def test_a_causal_fault_stays_causal() -> None:
    _, _, inputs, _ = reduced(ignores_causal, captured(is_causal=True))
    assert inputs.is_causal
    assert inputs.shape[3:5] == (1, 2)


def test_a_causal_call_becomes_one_query_with_its_keys() -> None:
    _, _, inputs, _ = reduced(drops_tail, captured(lq=77, is_causal=True))
    assert not inputs.is_causal
    assert inputs.shape[3:5] == (1, 17)


def test_another_symptom_does_not_count() -> None:
    x = captured(lq=4, lk=20)
    q = x.q.copy()
    q[0, 0, 2] *= 500
    _, _, inputs, check = reduced(overflows, x.with_(q=q), ())
    assert check.symptom == "out not finite"
    assert np.isnan(check.worst.got)
    assert inputs.shape[:5] == (1, 1, 1, 1, 1)
    assert np.isin(inputs.q, q[0, 0, 2]).all()


def test_head_sizes_that_the_kernel_does_not_take_are_not_tried() -> None:
    *_, inputs, _ = reduced(drops_tail, captured(), head_dims=(8, 16), dim_v_differs=False)
    assert inputs.shape[5:] == (8, 8)
    *_, inputs, _ = reduced(drops_tail, captured(scale=0.5), head_dims=(16,), scale_none=False)
    assert (inputs.shape[5:], inputs.scale) == ((16, 16), 0.5)


def test_runs_are_bounded() -> None:
    calls = []

    def counted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        calls.append(1)
        return drops_tail(query, key, value)

    runner = InProcess(Kernel(counted, options=()))
    subject = Subject(runner, runner.start(), Space())
    problem, inputs = of_tensors(captured())
    check = AGREEMENT.check(subject.case(problem, None, inputs))
    calls.clear()
    for limits in ({"max_runs": 3}, {"max_seconds": 0.0}):
        out = reduce_captured(subject, AGREEMENT, problem, inputs, None, check, **limits)
        assert out[2].failed
    assert len(calls) == 3
    assert out[1] is inputs, "nothing was tried"


def test_a_failure_that_does_not_repeat_is_given_back() -> None:
    runner = InProcess(Kernel(reference, options=()))
    subject = Subject(runner, runner.start(), Space())
    problem, inputs = of_tensors(captured(lq=2, lk=3))
    worst = Worst("out", (0, 0, 0, 0), 1.0, 0.0, 1.0, 1e-7, 0.0)
    check = Check("agreement", Verdict.VIOLATION, 9.0, "out value", "wrong", worst)
    out = reduce_captured(subject, AGREEMENT, problem, inputs, None, check)
    assert out == (problem, inputs, check)


def test_the_reduced_failure_is_explained() -> None:
    subject, problem, inputs, check = reduced(drops_tail, captured())
    words = explain(
        subject, AGREEMENT, problem, None, check, example_id="fc-aaaaaaaa", command="again",
        captured=inputs,
    )  # fmt: skip
    assert "key 16" in words.sentence.lower()
    assert "1 query, 17 keys, head size 1, float32, no mask" in words.text
    assert "q, k and v are captured" in words.text
