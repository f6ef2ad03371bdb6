"""Gradients of kernels: found, asked for, judged, explained, and written as a script."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashcheck import grad_out, oracle
from flashcheck.call import Call, Reply
from flashcheck.checking import check
from flashcheck.examples import Example
from flashcheck.explanation.gradients import sentence
from flashcheck.fills import Fill
from flashcheck.grad_out import GRAD_LAYOUTS, GradLayout, GradOut, Wrt
from flashcheck.kernel import Kernel
from flashcheck.law import Subject, law_named, laws
from flashcheck.loading import load
from flashcheck.openings import openings
from flashcheck.oracle.backward import gradients as exact_gradients
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.script import script
from flashcheck.strategies import Space, drawn
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess, Worker

pytestmark = pytest.mark.cpu

NORMAL = Fill(noise="normal", spread=1.0)
PROBLEM = Problem(
    batch=2, heads=4, kv_heads=2, len_q=5, len_k=7, dim=8, dim_v=8, q=NORMAL, k=NORMAL, v=NORMAL,
    seed=2,
)  # fmt: skip
SQUARE = replace(PROBLEM, heads=2, dim_v=8)
"""Without groups: for kernels that have no enable_gqa."""


def weights(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)


class Plain(torch.autograd.Function):
    """A backward that somebody wrote; `wrong` is how it goes wrong."""

    wrong = ""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        return weights(q, k) @ v

    @staticmethod
    def backward(ctx: Any, do: torch.Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        wrong, scale = Plain.wrong, 1 / math.sqrt(q.shape[-1])
        p = weights(q, k)
        if wrong == "strides" and 0 not in do.stride():
            do = torch.as_strided(do, do.shape, torch.empty(do.shape).stride())
        if wrong == "modified":
            do.mul_(1.0 + 2.0**-20)
        delta = (p @ v * do).sum(-1, keepdim=True)
        ds = p * (do @ v.mT - (0 if wrong == "delta" else delta))
        dq, dk, dv = ds @ k * scale, ds.mT @ q * (1 if wrong == "scale" else scale), p.mT @ do
        if wrong.startswith("value features"):
            other = 1 / scale / math.sqrt(v.shape[-1])
            dk, dq = dk * other, dq * other if "dq" in wrong else dq
        if wrong == "again":
            dk, ctx.times = dk * getattr(ctx, "times", 1), 2
        if wrong == "none":
            return dq, dk, None
        if wrong == "slots" and not all(ctx.needs_input_grad):
            return dq, dv, dk
        return dq, dk, dv


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = Plain.apply(query, key, value)  # type: ignore[no-untyped-call]
    return out


def traced(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return weights(query, key) @ value


def detached(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return traced(query, key, value).detach()


def behind_views(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    out = attention(query, key, value).mT.contiguous().mT
    return out[:, :, : query.shape[2]].reshape(out.shape).double().to(query.dtype)


def refusing(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    if query.requires_grad and query.dtype == torch.float16:
        raise ValueError("no gradients in float16")
    return attention(query, key, value)


# -- found -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "found", "said"),
    [
        (attention, True, "backward: gradients through lse"),
        (behind_views, True, "backward: gradients through lse"),
        (traced, False, "the kernel brings none of its own (BmmBackward0 comes of tracing"),
        (detached, False, "backward: the kernel brings none"),
        (Kernel(traced, backward=True), True, "backward: gradients through lse"),
        (Kernel(attention, backward=False), False, "the kernel declares backward=False"),
        ("torch_sdpa[flash]", True, "backward: gradients through lse"),
        ("torch_sdpa[math]", False, "brings none of its own"),
        ("numpy_naive", False, "backward: the kernel brings none"),
    ],
)
def test_probe(kernel: str | Kernel | Callable[..., Any], found: bool, said: str) -> None:
    runner = InProcess(kernel)
    probed = probe(runner, runner.start(), ("float32",))
    assert probed.spaces["float32"].backward == found
    (line, *more) = [line for line in probed.untested if line.startswith("backward")]
    assert said in line
    assert not more


def test_probe_refused_in_one_dtype() -> None:
    runner = InProcess(refusing)
    probed = probe(runner, runner.start(), ("float32", "float16"))
    assert [probed.spaces[d].backward for d in ("float32", "float16")] == [True, False]
    assert "backward in float16: refused (ValueError: no gradients in float16)" in probed.untested


def test_laws_are_for_kernels_with_a_backward() -> None:
    runner = InProcess(attention)
    subject = Subject(runner, runner.start(), Space())
    about = [law for law in laws() if law.backward]
    assert len(about) == 8
    assert not any(law.possible(subject) or law.applies(subject.case(SQUARE)) for law in about)
    other = Subject(runner, runner.start(), Space(backward=True))
    assert all(law.possible(other) and law.applies(other.case(SQUARE)) for law in about)


# -- asked for -------------------------------------------------------------------------------


def _run(kernel: Any, problem: Problem, given: GradOut, isolated: bool = False) -> Reply:
    with Worker(kernel) if isolated else InProcess(kernel) as runner:
        return runner.call(Call(problem.inputs(), grad_out=given))


@pytest.mark.parametrize("layout", GRAD_LAYOUTS)
@pytest.mark.parametrize("wrt", [("q", "k", "v"), ("k",), ("q", "v")])
def test_gradients_of_a_call(layout: GradLayout, wrt: tuple[Wrt, ...]) -> None:
    shape = (2, 4, 5, 8)
    ones = layout == "expanded"
    values = grad_out.constant(shape) if ones else grad_out.evaluate(2, "float32", shape)
    exact = exact_gradients(PROBLEM.inputs(), values)
    for isolated in (False, True):
        problem = replace(PROBLEM, layout="packed")
        reply = _run("torch_sdpa[flash]", problem, GradOut(values, wrt, layout), isolated)
        assert reply.status == "ok"
        assert reply.backward == "ScaledDotProductFlashAttentionForCpuBackward0"
        assert [*reply.gradients] == [f"d{name}" for name in wrt]
        for name, gradient in reply.gradients.items():
            assert gradient == pytest.approx(getattr(exact, name).value, abs=1e-5)


def test_bshd() -> None:
    def turned(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    values = grad_out.evaluate(2, "float32", (2, 2, 5, 8))
    given = GradOut(values, layout="transposed")
    reply = _run(Kernel(turned, layout="bshd"), SQUARE, given)
    exact = exact_gradients(SQUARE.inputs(), values)
    for name, gradient in reply.gradients.items():
        assert gradient == pytest.approx(getattr(exact, name).value, abs=1e-5)


def test_no_grad_fn_is_a_failure_and_a_traced_forward_a_refusal() -> None:
    given = GradOut(grad_out.constant((2, 2, 5, 8)))
    reply = _run(detached, SQUARE, given)
    assert (reply.status, reply.exception) == ("error", "Detached")
    assert _run(traced, SQUARE, given).status == "unsupported"


def test_what_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="one of q, k and v"):
        GradOut(np.ones((1, 1, 1, 1)), wrt=())
    with pytest.raises(ValueError, match="repeats one value"):
        GradOut(np.arange(4.0).reshape(1, 1, 2, 2), layout="expanded")


# -- judged and explained --------------------------------------------------------------------


def _checked(wrong: str, law: str, problem: Problem = SQUARE) -> Check:
    Plain.wrong = wrong
    try:
        found = check(attention, problem, property=law)
        return replace(found, explain=None, message=str(found.explain()) if found.explain else "")
    finally:
        Plain.wrong = ""


@pytest.mark.parametrize("law", [law.name for law in laws() if law.backward])
def test_a_right_backward_passes(law: str) -> None:
    assert _checked("", law).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("wrong", "law", "said"),
    [
        ("delta", "gradients", "dq and dk are wrong, dv is right: delta is left out."),
        ("delta", "constant_v_gradients", "delta is left out"),
        ("scale", "gradients", "dk is wrong, dq and dv are right: dk lacks the scale."),
        ("scale", "gradient_homogeneity", "dk lacks the scale"),
        ("slots", "partial_gradients", "where only some of q, k and v require"),
        ("strides", "grad_out_strides", "the same grad_out at other strides"),
        ("none", "gradients", "dv is None, not a torch tensor"),
        ("again", "second_backward", "a second backward of the same graph"),
        ("modified", "poison_gradients", "the call changed the memory of grad_out"),
    ],
)
def test_a_wrong_backward_fails(wrong: str, law: str, said: str) -> None:
    seeds = (2, 3, 4, 7)  # one law or another depends on the seed's subset, or layout
    found = [_checked(wrong, law, replace(SQUARE, seed=seed)) for seed in seeds]
    failed = [c for c in found if c.failed]
    assert failed
    assert any(said in " ".join(c.message.split()) for c in failed), failed[0].message


@pytest.mark.parametrize("wrong", ["dk", "dq and dk"])
@pytest.mark.parametrize(
    ("dim_v", "said"),
    [
        (5, "{} {is} scaled by 1 / sqrt(Dv) instead of 1 / sqrt(D)."),
        (1, "{} {lacks} the scale, or {is} scaled by 1 / sqrt(Dv) instead of 1 / sqrt(D)."),
        (64, "{} {is} scaled twice, or {is} scaled by 1 / sqrt(Dv) instead of 1 / sqrt(D)."),
    ],
)
def test_a_scale_of_the_value_features(wrong: str, dim_v: int, said: str) -> None:
    found = _checked(f"value features in {wrong}", "gradients", replace(SQUARE, dim_v=dim_v))
    words = {"is": "is", "lacks": "lacks"} if wrong == "dk" else {"is": "are", "lacks": "lack"}
    assert said.format(wrong, **words) in " ".join(found.message.split()), found.message


def test_an_opening_has_a_grad_out_of_noise() -> None:
    for seed in range(40):
        fill = grad_out.recipe(grad_out.telling(seed))
        assert fill.noise != "none"
        assert abs(grad_out.telling(seed) - seed) < 10
    found = list(openings(Space(backward=True), 1))
    assert all(grad_out.recipe(p.seed).noise != "none" for p in found)


def test_right_gradients_are_not_explained() -> None:
    runner = InProcess(attention)
    case = Subject(runner, runner.start(), Space(backward=True)).case(SQUARE)
    failed = Check("gradients", Verdict.VIOLATION, 2.0, "gradient value")
    assert sentence(case, failed) is None


OPTIONS = ("scale", "is_causal", "attn_mask", "window_size", "softcap", "alibi_slopes", "sinks")


def every_option(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    attn_mask: torch.Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """The definition in torch, differentiated by autograd."""
    n, m = query.shape[2], key.shape[2]
    s = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    offset = torch.arange(m) - torch.arange(n)[:, None] - (m - n)
    if alibi_slopes is not None:
        s = s - alibi_slopes.to(s.dtype)[:, None, None] * offset.abs()
    seen = torch.ones(s.shape, dtype=torch.bool)
    if attn_mask is not None:
        seen = seen & (attn_mask if attn_mask.dtype == torch.bool else attn_mask != -math.inf)
        if attn_mask.dtype != torch.bool:
            s = s + attn_mask.masked_fill(attn_mask == -math.inf, 0.0)
    if is_causal:
        seen = seen & (torch.arange(m) <= torch.arange(n)[:, None])
    left, right = window_size
    seen = (
        seen & (offset >= -left if left >= 0 else True) & (offset <= right if right >= 0 else True)
    )
    s = s.masked_fill(~seen, -math.inf)
    none = ~seen.any(-1, keepdim=True)
    if sinks is not None:
        column = sinks[:, None, None].expand(*s.shape[:3], 1)
        s, value = torch.cat([s, column], -1), torch.nn.functional.pad(value, (0, 0, 0, 1))
        none = torch.zeros_like(none)
    if not s.shape[-1]:
        return (
            (query.sum() + key.sum()) * 0
            + value.sum() * 0
            + torch.zeros(*query.shape[:3], value.shape[3], dtype=query.dtype)
        )
    p = s.masked_fill(none, 0.0).softmax(-1).masked_fill(none, 0.0)
    return p @ value


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_autograd_of_the_definition_passes(dtype: str) -> None:
    """No false alarm on any option, where autograd's own gradients keep the contract."""
    kernel = Kernel(every_option, backward=True, dtypes=("float64", "float32"))
    runner = InProcess(kernel)
    target = runner.start()
    assert set(OPTIONS) <= set(target.options)
    space = replace(probe(runner, target, (dtype,)).spaces[dtype], max_length=40, work=4_000)
    assert space.backward
    subject = Subject(runner, target, space)
    judged = 0
    for problem in drawn(space, 40, 1):
        for law in laws():
            case = subject.case(problem)
            if law.backward and law.applies(case):
                found = law.check(case)
                assert not found.failed, (problem, found.message)
                judged += found.verdict is Verdict.PASS
    assert judged > 150


# -- as a script -----------------------------------------------------------------------------

BROKEN = """
import torch
from flashcheck.kernel import Kernel


class Broken(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        ctx.save_for_backward(q, k, v)
        return (q @ k.mT).softmax(-1) @ v

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        return torch.zeros_like(q), torch.zeros_like(k), 2 * ((q @ k.mT).softmax(-1).mT @ do)


def attention(query, key, value):
    return Broken.apply(query, key, value)
"""


@pytest.mark.parametrize("name", ["gradients", "value_gradient_sum"])
def test_script(name: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    spec = f"{tmp_path / 'broken.py'}:attention"
    problem, law = Problem(len_k=3, seed=10), law_named(name)
    assert law is not None
    runner = InProcess(spec)
    case = Subject(runner, runner.start(), Space(backward=True)).case(problem)
    found = law.check(case)
    assert (found.verdict, found.symptom) == (Verdict.VIOLATION, "gradient value")
    example = Example(problem=problem, property=name, target=spec, name="broken", check=found)
    text = script(example, load(spec)[1]).text
    assert "differentiate(q, k, v, grad_out1)" in text
    (tmp_path / "again.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "again.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if name == "gradients":
        assert "assert error <= bound" in done.stderr
    else:  # a sum is no element: the calls are made, and not judged
        assert "the kernel returned" in done.stdout


def test_oracle_of_a_problem_is_exact_enough() -> None:
    """What the law compares with is the definition, up to a share of the bound."""
    runner = InProcess(attention)
    case = Subject(runner, runner.start(), Space(backward=True)).case(SQUARE)
    bound, exact = case.gradient_bound(case.dout), case.exact_gradients()
    assert (exact.dq.radius <= oracle.SHARE * bound.dq).all()
