"""Assertion: a result that is at hand lies within the bound of the exact one."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from flashcheck.call import Call, Reply
from flashcheck.case import Case
from flashcheck.examples import of_tensors
from flashcheck.explanation.explain import counterexample, input_lines
from flashcheck.inputs import Inputs
from flashcheck.kernel import OPTIONS, Contract, Kernel, Target
from flashcheck.law import laws
from flashcheck.oracle.definition import Row
from flashcheck.oracle.rows import at_risk, parts
from flashcheck.problem import Problem
from flashcheck.ranking import worst_rows
from flashcheck.strategies import misaligned
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess

if TYPE_CHECKING:
    import torch

AT_ONCE = 1 << 22
"""Scores that are judged at once; more are judged by rows, in memory that does not grow."""

EVERY_ROW = 1 << 25
"""Scores up to which every row is judged unless a number of rows is asked for."""

ROWS = 64
"""Rows that are judged of a longer call."""


def assert_within_bound(
    out: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
    problem: Problem | Inputs,
    *,
    contract: Contract = Contract(),
    layout: Literal["bhsd", "bshd"] = "bhsd",
    causal_alignment: Literal["top_left", "bottom_right"] = "top_left",
    lse_base: Literal["e", "2"] = "e",
    masked_rows: Literal["zero", "nan", "unspecified"] = "zero",
    rows: int | None = None,
) -> Check:
    """Assert that a kernel's result is what attention gives on `problem`, within its bound.

    out: [B, Hq, Lq, Dv], or (out, lse) with lse [B, Hq, Lq], on any device. problem: a Problem,
    or `inputs_of` the tensors and options that the kernel was called with. contract: what the
    kernel promises about its arithmetic, from which the bound is derived. The rest declares how
    the result is to be read, as flashcheck.Kernel does.

    rows: how many of the B * Hq * Lq rows are judged, those most at risk among them. None is
    all, but 64 where there are more than 2^25 scores. A score takes the CPU about a microsecond.
    On a GPU every row is evaluated there in float64, and half of those judged are the worst.

    Returns the check, whose `ratio` is the largest error / bound, and whose verdict is VACUOUS
    where the bound says nothing about most elements. Raises CheckFailed, an AssertionError with
    the worst element, for an element beyond its bound, NaN, and a wrong dtype, shape or device;
    ValueError for is_causal with window_size or alibi_slopes where Lq is not Lk, which have no
    one meaning without causal_alignment="bottom_right"; TargetError for a tensor that is neither
    on the CPU nor on a CUDA device.
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
    whole = problem if isinstance(problem, Inputs) else problem.inputs()
    if causal_alignment == "top_left":
        _check_alignment(problem)
    # The runner makes the device of the tensor the current one.
    with torch.cuda.device_of(tensor), InProcess(kernel, str(tensor.device)) as runner:
        # The factors of float8 were passed then; no kernel is passed them here.
        plain = whole.with_(q_descale=None, k_descale=None, v_descale=None)
        target, reply = runner.start(), runner.call(Call(plain))
        device = runner.device
    scores = math.prod(whole.q.shape[:3]) * whole.k.shape[2]
    usable = reply.status == "ok" and not reply.problem_with_output
    if usable and (rows is not None or scores > AT_ONCE):
        count = rows or (ROWS if scores > EVERY_ROW else scores)
        chosen = _rows(whole, reply, contract, device, count)
        check, case = _by_rows(whole, reply, target, device, chosen)
    else:
        outline, captured = (problem, None) if isinstance(problem, Problem) else of_tensors(whole)
        case = Case(_Given(reply), target, outline, device=device, inputs=captured)
        check = laws()[0].check(case)
    if check.failed:
        check = replace(check, explain=partial(_explain, case, check))
    return check.raise_if_failed()


def _check_alignment(problem: Problem | Inputs) -> None:
    """Refuse options that are aligned differently, so that nothing says what the result is."""
    if isinstance(problem, Problem):
        together = misaligned(problem)
    else:
        together = "" if problem.seqlens_k is not None else misaligned(of_tensors(problem)[0])
    if together:
        raise ValueError(
            f"nothing says how {together} go together where Lq is not Lk: pass "
            "causal_alignment='bottom_right' if all are aligned at the ends"
        )


class _Given:
    """A runner whose kernel has run already."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply

    def submit(self, call: Call) -> None:
        """Nothing is left to do."""

    def result(self) -> Reply:
        return self.reply


def _rows(x: Inputs, reply: Reply, contract: Contract, device: str, count: int) -> list[Row]:
    """The rows to judge: on a GPU every row is evaluated, and half of them are the worst."""
    if not device.startswith("cuda") or math.prod(x.q.shape[:3]) <= count:
        return at_risk(x, count)
    lse = reply.lses[0] if reply.lses else None
    worst = worst_rows(x, reply.outs[0], lse, (count + 1) // 2, contract, device)
    return list(dict.fromkeys([*worst, *at_risk(x, count)]))[:count]


def _by_rows(
    x: Inputs, reply: Reply, target: Target, device: str, rows: list[Row]
) -> tuple[Check, Case]:
    """The check of the worst part, with the counts of all, and the part."""
    found: list[tuple[Check, Case]] = []
    for at, part in parts(x, rows):
        index = tuple(zip(*at, strict=True))
        of_part = Reply(
            "ok",
            outs=[out[index][None, None] for out in reply.outs],
            lses=[lse[index][None, None] for lse in reply.lses],
            out_dtype=reply.out_dtype,
        )
        outline, captured = of_tensors(part)
        case = Case(_Given(of_part), target, outline, device=device, inputs=captured)
        check = laws()[0].check(case)
        if check.worst is not None:
            # Where it is in the whole call.
            _, _, k, *channel = check.worst.index
            check = replace(check, worst=replace(check.worst, index=(*at[k], *channel)))
        found.append((check, case))
    check, case = max(found, key=lambda pair: (pair[0].failed, pair[0].ratio))
    counts = {name: sum(each.counts[name] for each, _ in found) for name in check.counts}
    if not check.failed:
        vacuous = 2 * counts["vacuous"] > counts["elements"]
        check = replace(check, verdict=Verdict.VACUOUS if vacuous else Verdict.PASS)
    return replace(check, counts=counts), case


def _explain(case: Case, check: Check) -> str:
    what = "The result is not within the bound of the exact one" if check.worst else check.message
    next_steps = ["flashcheck.gate([kernel]) finds the smallest input and says what is wrong"]
    if math.isfinite(check.ratio):
        next_steps.append(
            "A kernel that promises less than the default contract (TF32, ...) is judged by its "
            "own: contract=flashcheck.Contract(...)"
        )
    return counterexample(check, what, {"Problem": input_lines(case), "Next": tuple(next_steps)})
