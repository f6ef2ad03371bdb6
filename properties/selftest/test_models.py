"""Models name the fault of a kernel that is written differently, and are silent about others."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import itertools
import re
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from flashcheck import fault
from flashcheck.explanation import clock, explain, models
from flashcheck.explanation.forms import FORMS
from flashcheck.explanation.models import MODEL, Likely, likely
from flashcheck.fills import Fill
from flashcheck.kernel import Kernel
from flashcheck.law import Subject, laws
from flashcheck.masks import Mask
from flashcheck.openings import openings
from flashcheck.problem import Problem
from flashcheck.strategies import Space
from flashcheck.verdict import Check
from flashcheck.worker import InProcess

AGREEMENT = laws()[0]

NORMAL = Fill(noise="normal", spread=1.0)
HIGH = Problem(q=Fill(level=90.0), k=Fill(level=1.0))
LATE = Problem(
    len_k=80, scale=1.0, q=Fill(level=1.0), k=Fill("step", level=4.0, at=64),
    v=NORMAL,
)  # fmt: skip
ROWS = Problem(len_q=5, len_k=7, dim=8, dim_v=8, q=NORMAL, k=NORMAL, v=NORMAL)
HALF = Problem(dtype="float16", len_q=3, len_k=5, dim=4, dim_v=4, q=NORMAL, k=NORMAL, v=NORMAL)
GROUPED = Problem(heads=4, kv_heads=2, len_k=3, dim=8, dim_v=8, q=NORMAL, k=NORMAL, v=NORMAL)
MASKED = Problem(len_q=2, len_k=3, v=Fill(level=1.0), mask=Mask(hides="tail", amount=1))


def found(target: str | Kernel, problem: Problem, config: str | None = None) -> Likely | None:
    """The likely cause of a failure of agreement."""
    runner = InProcess(target)
    started = runner.start()
    space = Space(dtype=problem.dtype, options=frozenset(started.options))
    subject = Subject(runner, started, space)
    case = subject.case(problem, config)
    check: Check = AGREEMENT.check(case)
    assert check.failed, f"{target} is right on {problem}"
    return likely(case, AGREEMENT, check)


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("acc_not_rescaled", LATE),
        ("maximum_not_subtracted", HIGH),
        ("maximum_starts_at_zero", replace(HIGH, k=Fill(level=-2.0))),
        ("key_blocks_floored", LATE),
        ("kv_head_modulo", GROUPED),
        ("bool_mask_inverted", MASKED),
        ("next_key_visible", Problem(len_k=2, is_causal=True)),
        ("scale_without_root", ROWS),
        ("lse_in_base_two", ROWS),
        ("p_in_e4m3", HALF),
        ("normalizer_not_rescaled", LATE),
    ],
)
def test_the_injected_fault_is_named(fault: str, problem: Problem) -> None:
    cause = found(f"numpy_online+{fault}", problem, "block_64")
    assert cause is not None
    assert cause.faults == (fault,)
    assert cause.others >= 2


@pytest.mark.parametrize(
    ("target", "problem", "config"),
    [
        # P is not rounded, and so does not overflow.
        ("numpy_online+maximum_not_subtracted", replace(HIGH, dtype="float16"), "block_16"),
        # The maximum is that of all queries.
        (
            "numpy_online+maximum_of_tile",
            Problem(dtype="float16", len_q=2, q=Fill("spike", level=99.0, at=-1), k=Fill(level=1)),
            "block_16_reverse",
        ),
        # Blocks above the diagonal are visited.
        ("numpy_online+causal_index_wraps", Problem(len_k=65, is_causal=True), "block_16"),
        # Its empty rows are the mean over a padded block.
        (
            "triton_flash+hidden_scores_at_finite_minimum",
            Problem(v=Fill(level=1.0), mask=Mask(hides="tail", amount=1)),
            "128x64",
        ),
        # Only rows without a key are wrong, and one such row says nothing.
        (
            "numpy_online+lse_of_empty_rows_plus_infinity",
            Problem(mask=Mask(hides="tail", amount=1)),
            "block_64",
        ),
        ("numpy_online+empty_keys_not_written", Problem(len_k=0), "block_64"),
    ],
)
def test_a_fault_is_named_whatever_the_form_of_its_kernel(
    target: str, problem: Problem, config: str
) -> None:
    if target.startswith("triton"):
        pytest.importorskip("triton")
    cause = found(target, problem, config)
    assert cause is not None
    assert cause.faults == (target.partition("+")[2],)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_every_form_of_the_model_without_a_fault_is_right(form: str, dtype: str) -> None:
    model = importlib.import_module(f"flashcheck.kernels.{MODEL}")
    source = ast.unparse(ast.parse(inspect.getsource(model)))
    text = FORMS[form](source)
    assert text is not None
    assert (text == source) == (form == "tiles")
    module = ModuleType("flashcheck.kernels.form")
    module.__package__ = "flashcheck.kernels"
    exec(text, vars(module))
    runner = InProcess(module.kernel)
    started = runner.start()
    space = Space(
        dtype=dtype, options=frozenset(started.options), max_length=130, work=100_000
    )  # fmt: skip
    subject = Subject(runner, started, space)
    for problem, config in itertools.product(openings(space, 1), ("64x64", "16x16_reverse")):
        check = AGREEMENT.check(subject.case(problem, config))
        assert not check.failed, f"{form} is wrong on {problem}"


@pytest.mark.parametrize("form", FORMS)
def test_every_fault_is_python_in_every_form(form: str) -> None:
    """Where a form does not fit a fault, loading says so."""
    fits = 0
    for name in fault.names():
        if MODEL in fault.read(name).edits:
            with contextlib.suppress(fault.FaultError):
                fault.load(MODEL, name, form, FORMS[form])
                fits += 1
    assert fits > 100


def test_a_missed_rescale_has_its_factor() -> None:
    cause = found("numpy_online+acc_not_rescaled", LATE, "block_64")
    assert cause is not None
    assert re.search(
        r"block 2 of 64 keys raises the maximum of query 0 by 4, "
        r"and exp\(m_old - m_new\) = 0.0183",
        cause.sentence,
    ), cause.sentence


def textbook(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, fault: str
) -> torch.Tensor:
    """Attention without blocks and without lse, with one fault."""
    q, k, v = query.float(), key.float(), value.float()
    s = torch.einsum("bhid,bhjd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if fault == "rising":  # a bias that no option asked for
        s = s + 0.1 * torch.arange(s.shape[-1])
    if fault == "ends early":  # the usual bug, in the unusual block of 24
        s = s[..., : max(1, s.shape[-1] // 24) * 24]
    if fault == "scale of dim":
        s = s / s.new_tensor(q.shape[-1]).sqrt() if scale is None else s
    p = torch.softmax(s, -1)
    if fault == "squared":
        p = p * p
    if fault == "nan":
        p = torch.where(s.amax(-1, keepdim=True) > 1, torch.nan, p)
    out = p @ v[:, :, : p.shape[-1]]
    return (out * 1.01 if fault == "one percent" else out).to(query.dtype)


def kernel(fault: str) -> Kernel:
    def fn(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float | None = None
    ) -> Any:
        return textbook(query, key, value, scale, fault)

    return Kernel(fn, name="textbook")


def test_a_kernel_of_another_form_without_lse() -> None:
    cause = found(kernel("scale of dim"), ROWS)
    assert cause is not None
    assert cause.faults == ("scale_without_root",)


@pytest.mark.parametrize("fault", ["rising", "ends early", "squared", "nan", "one percent"])
def test_what_no_model_does_has_no_name(fault: str) -> None:
    assert found(kernel(fault), replace(ROWS, len_k=30)) is None


def test_nan_is_reproduced_where_it_is() -> None:
    problem = Problem(len_q=2, len_k=3, v=NORMAL, mask=Mask(hides="row", amount=1))
    cause = found("numpy_online+zero_normalizer_unguarded", problem, "block_64")
    assert cause is not None
    assert cause.faults == ("zero_normalizer_unguarded",)


def test_a_bias_that_only_lse_lacks_is_not_an_ignored_one() -> None:
    """The bias is taken relative to its row's maximum: what is the same for every key is lost."""

    def fn(query: Any, key: Any, value: Any, *, attn_mask: Any = None) -> Any:
        s = query @ key.mT / query.shape[-1] ** 0.5
        if attn_mask is not None:
            s = s.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else s
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            s = s + attn_mask - attn_mask.amax(-1, keepdim=True).clamp_min(-1e30)
        return torch.softmax(s, -1).nan_to_num(0.0) @ value, torch.logsumexp(s, -1)

    problem = Problem(len_k=3, mask=Mask(kind="additive", bias=Fill(level=1.0)))
    assert found(Kernel(fn, name="shifted"), problem) is None


def test_no_fault_is_named_of_an_option_that_the_kernel_lacks() -> None:
    """Without splits a sink may be left out of the maximum, but not join that of a split."""

    def fn(query: Any, key: Any, value: Any, *, sinks: Any = None) -> Any:
        s = query @ key.mT / query.shape[-1] ** 0.5
        top = s.amax(-1, keepdim=True) if s.shape[-1] else s.new_zeros((*s.shape[:3], 1))
        p = torch.exp(s - top)
        rest = 0.0 if sinks is None else torch.exp(sinks[:, None, None] - top)
        total = p.sum(-1, keepdim=True) + rest
        return p @ value / total.where(total != 0, 1.0), (top + total.log())[..., 0]

    cause = found(Kernel(fn, name="sinks"), Problem(v=NORMAL, sinks=Fill(level=150.0)))
    assert cause is not None
    assert cause.faults == ("sink_left_out_of_maximum",)


def test_low_biases_that_are_dropped_are_not_all_ignored() -> None:
    def fn(query: Any, key: Any, value: Any, *, attn_mask: Any = None) -> Any:
        s = query @ key.mT / query.shape[-1] ** 0.5
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            s = s.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            s = s + attn_mask.where((attn_mask > -1e4) | attn_mask.isinf(), 0.0)
        return torch.softmax(s, -1).nan_to_num(0.0) @ value

    bias = Fill(level=-3e4, noise="normal", spread=1.0)
    problem = replace(ROWS, len_k=3, mask=Mask(kind="additive", bias=bias))
    assert found(Kernel(fn, name="dropped"), problem) is None


def test_loading_the_models_takes_none_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first failure of a run is explained as well as the next."""
    now, load = 0.0, fault.load

    def slowly(*named: Any) -> ModuleType:
        nonlocal now
        now += 1.0
        return load(*named)

    monkeypatch.setattr(
        clock, "time", SimpleNamespace(process_time=lambda: now, monotonic=lambda: now)
    )
    monkeypatch.setattr(fault, "load", slowly)
    models._runner.cache_clear()
    cause = found("numpy_online+kv_head_modulo", GROUPED, "block_64")
    assert now > 100
    assert cause is not None
    assert cause.faults == ("kv_head_modulo",)


def test_a_correct_kernel_has_no_cause() -> None:
    runner = InProcess(kernel(""))
    subject = Subject(runner, runner.start(), Space(options=frozenset({"scale"})))
    case = subject.case(ROWS)
    check = AGREEMENT.check(case)
    assert not check.failed
    assert likely(case, AGREEMENT, check) is None


@pytest.mark.parametrize(
    ("fault", "bias", "coincidence"),
    [
        ("mask_added_before_scale", 1.0, "scaled twice"),
        ("additive_mask_added_twice", 1.0, "plus the normalizer"),
    ],
)
def test_beside_the_cause_is_nothing_that_holds_by_chance(
    fault: str, bias: float, coincidence: str
) -> None:
    """One key, equal scores: lse is what two other bugs would make of it."""
    runner = InProcess(f"numpy_online+{fault}")
    subject = Subject(runner, runner.start(), Space())
    problem = Problem(dim=2, mask=Mask(kind="additive", bias=Fill(level=bias)))
    check = AGREEMENT.check(subject.case(problem, "block_64"))
    told = explain(
        subject, AGREEMENT, problem, "block_64", check, example_id="fc-a", command="flashcheck"
    )
    assert fault in told.cause
    assert coincidence not in told.text
    assert re.match(r"lse is too (large|small) by", told.sentence), told.sentence


def test_the_explanation_tells_the_cause_before_the_input() -> None:
    runner = InProcess("numpy_online+acc_not_rescaled")
    subject = Subject(runner, runner.start(), Space())
    check = AGREEMENT.check(subject.case(LATE, "block_64"))
    told = explain(
        subject, AGREEMENT, LATE, "block_64", check, example_id="fc-a", command="flashcheck"
    )
    print(told.text)
    assert told.cause.startswith("The accumulator keeps the scale of an earlier, smaller maximum")
    sections = [line for line in told.text.splitlines() if line[:1].isupper()]
    assert sections[1] == "Likely cause"
    assert sections[2] == "Smallest input found"
