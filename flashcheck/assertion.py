"""Assertion: a result that is at hand lies within the bound of the exact one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from flashcheck.case import Case
from flashcheck.examples import of_tensors
from flashcheck.explanation.explain import counterexample, input_lines
from flashcheck.inputs import Inputs
from flashcheck.kernel import OPTIONS, Contract, Kernel
from flashcheck.law import laws
from flashcheck.problem import Problem
from flashcheck.verdict import Check
from flashcheck.worker import InProcess

if TYPE_CHECKING:
    import torch


def assert_within_bound(
    out: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    problem: Problem | Inputs,
    *,
    contract: Contract = Contract(),
    layout: Literal["bhsd", "bshd"] = "bhsd",
    causal_alignment: Literal["top_left", "bottom_right"] = "top_left",
    lse_base: Literal["e", "2"] = "e",
    masked_rows: Literal["zero", "nan", "unspecified"] = "zero",
) -> Check:
    """Assert that a kernel's result is what attention gives on `problem`, within its bound.

    out: [B, Hq, Lq, Dv], or (out, lse) with lse [B, Hq, Lq], on any device. problem: a Problem,
    or `inputs_of` the tensors and options that the kernel was called with. contract: what the
    kernel promises about its arithmetic, from which the bound is derived. The rest declares how
    the result is to be read, as flashcheck.Kernel does. The exact result takes the CPU about 150
    bytes and a microsecond for each of the B * Hq * Lq * Lk scores.

    Returns the check, whose `ratio` is the largest error / bound, and whose verdict is VACUOUS
    where the bound says nothing about most elements. Raises CheckFailed, an AssertionError with
    the worst element, for an element beyond its bound, NaN, and a wrong dtype, shape or device;
    TargetError for a tensor that is neither on the CPU nor on a CUDA device.
    """
    import torch

    if not isinstance(problem, (Problem, Inputs)):
        raise TypeError(
            f"problem is of type {type(problem).__name__}; pass a flashcheck.Problem, or "
            "flashcheck.inputs_of(query, key, value, ...)"
        )
    first: Any = out[0] if isinstance(out, (tuple, list)) and out else out
    tensor = first if isinstance(first, torch.Tensor) else torch.empty(0)
    kernel = Kernel(
        lambda *_, **__: out,  # it ran before, elsewhere
        options=OPTIONS, contract=contract, layout=layout, causal_alignment=causal_alignment,
        lse_base=lse_base, masked_rows=masked_rows,
    )  # fmt: skip
    outline, captured = (problem, None) if isinstance(problem, Problem) else of_tensors(problem)
    # The runner makes the device of the tensor the current one.
    with torch.cuda.device_of(tensor), InProcess(kernel, str(tensor.device)) as runner:
        case = Case(runner, runner.start(), outline, device=runner.device, inputs=captured)
        check = laws()[0].check(case)
    if check.failed:
        check = replace(check, explain=partial(_explain, case, check))
    return check.raise_if_failed()


def _explain(case: Case, check: Check) -> str:
    what = "The result is not within the bound of the exact one" if check.worst else check.message
    next_steps = ["flashcheck.gate([kernel]) finds the smallest input and says what is wrong"]
    if math.isfinite(check.ratio):
        next_steps.append(
            "A kernel that promises less than the default contract (TF32, ...) is judged by its "
            "own: contract=flashcheck.Contract(...)"
        )
    return counterexample(check, what, {"Problem": input_lines(case), "Next": tuple(next_steps)})
