"""How often the likely cause is right

`python benchmarks/diagnosis.py > reports/diagnosis.md`, half an hour

A kernel is broken by a fault, on the problem that is kept as the fault's witness, and
explained as the gate does. Right: the fault is named, alone. One of two: with another of its
kind. Wrong: another is named. Silent: none is. Each is explained once more with the model of its
own fault taken away, as a bug that nobody has catalogued: whatever is named then is wrong, unless
it is nearly the same. Witnesses that show no wrong number, such as a crash, a hang or two calls
that differ, have no cause and are left out.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from page import head

from flashcheck.explanation.models import Likely, likely
from flashcheck.kernel import Kernel, TargetError
from flashcheck.law import Law, Subject, law_named, laws
from flashcheck.power.witness import Witness, witnesses
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.search import Search
from flashcheck.shrink import shrink
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess

KERNELS = ("numpy_online", "triton_flash")

OUTCOMES = ("right", "one of two", "wrong", "silent")


def outcome(found: Likely | None, fault: str) -> str:
    if found is None:
        return "silent"
    if fault not in found.faults:
        return "wrong"
    return "right" if len(found.faults) == 1 else "one of two"


def explained(w: Witness) -> tuple[str, Likely | None, str, Likely | None, float] | None:
    """(outcome, what was named) with all models and without the fault's own; seconds."""
    runner = InProcess(f"{w.kernel}+{w.fault}")
    target = replace(runner.start(), interpreted=w.kernel.startswith("triton"))
    dtype = w.problem.dtype
    spaces = probe(runner, target, (dtype,)).spaces
    law = law_named(w.property)
    if law is None or dtype not in spaces:
        return None
    case = Subject(runner, target, spaces[dtype]).case(w.problem, w.config)
    check = law.check(case)
    if check.verdict is not Verdict.VIOLATION:
        return None
    start = time.perf_counter()
    found = likely(case, law, check)
    seconds = time.perf_counter() - start
    unknown = likely(case, law, check, {w.fault})
    return outcome(found, w.fault), found, outcome(unknown, ""), unknown, seconds


def of_witnesses(kernel: str, dtype: str, confused: list[str]) -> None:
    """A line of the table."""
    kept = [w for w in witnesses() if w.kernel == kernel and w.problem.dtype == dtype]
    known: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    times = []
    for w in kept:
        try:
            result = explained(w)
        except TargetError:
            continue
        if result is None:
            continue
        said, found, without, other, seconds = result
        known[said] += 1
        unknown[without] += 1
        times.append(seconds)
        if said in ("wrong", "one of two"):
            confused.append(f"{kernel} {dtype}: {w.fault} is named {_names(found)}")
        if without == "wrong":
            confused.append(f"{kernel} {dtype}: {w.fault}, if unknown, is named {_names(other)}")
    _line(f"{kernel} {dtype}", known, unknown, times)


def _names(found: Likely | None) -> str:
    return " or ".join(found.faults) if found else "nothing"


def _line(name: str, known: Counter[str], unknown: Counter[str] | None, times: list[float]) -> None:
    n = known.total()
    cells = [f"{known[o]} ({known[o] / max(n, 1):.0%})" for o in OUTCOMES]
    cells.append("" if unknown is None else f"{unknown['wrong']}")
    times.sort()
    median = times[len(times) // 2] if times else 0.0
    cells.append(f"{median:.1f}, {times[-1] if times else 0.0:.1f}")
    print(f"| {name} | {n} | {' | '.join(cells)} |", flush=True)


# -- faults written differently ------------------------------------------------------------


def other(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    fault: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in two passes over whole rows, in octaves, without any block."""
    q, k, v = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (query, key, value))
    _, heads, rows, dim = q.shape
    cols = k.shape[2]
    if enable_gqa:
        of = torch.arange(heads) // (heads // k.shape[1])
        of = torch.arange(heads) % k.shape[1] if fault == "kv_head_modulo" else of
        of = of * 0 if fault == "first_kv_head_for_all" else of
        k, v = k[:, of], v[:, of]
    c = dim**-0.5 if scale is None else scale
    c = 1 / dim if fault == "scale_without_root" and scale is None else c
    c = dim**-0.5 if fault == "scale_ignored" else c
    c = abs(c) if fault == "scale_sign_lost" else c
    c = c * c if fault == "scale_applied_twice" else c
    c = 1 / c if fault == "scale_inverted" and c else c
    t = torch.einsum("bhid,bhjd->bhij", q * (c * math.log2(math.e)), k)
    if fault == "a slope that nobody asked for":
        t = t + 0.05 * torch.arange(cols)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = ~attn_mask if fault == "bool_mask_inverted" else attn_mask
        t = torch.where(attn_mask, t, -math.inf)
    elif attn_mask is not None and fault != "additive_mask_ignored":
        twice = 2.0 if fault == "additive_mask_added_twice" else 1.0
        t = t + attn_mask.to(t.dtype) * (twice * math.log2(math.e))
    if is_causal:
        shift = {"next_key_visible": 1, "diagonal_hidden": -1, "causal_bottom_right": cols - rows,
                 "two keys of the future": 2}.get(fault, 0)  # fmt: skip
        t = t.masked_fill(torch.ones(rows, cols).triu(shift + 1).bool(), -math.inf)
    top = t.amax(-1, keepdim=True) if cols else t.new_full((*t.shape[:3], 1), -math.inf)
    top = top.clamp_min(0) if fault == "maximum_starts_at_zero" else top
    base = torch.where(top == -math.inf, 0.0, top)
    base = base * 0 if fault == "maximum_not_subtracted" else base
    w = torch.exp2(t - base)
    w = w.to(torch.bfloat16).to(t.dtype) if fault == "p_in_bfloat16" else w
    if fault == "the first key counts twice":
        w = torch.cat([2 * w[..., :1], w[..., 1:]], -1)
    total = w.sum(-1, keepdim=True)
    total = total + 1e-5 if fault == "epsilon_in_normalizer" else total
    guarded = total if fault == "zero_normalizer_unguarded" else total + (total == 0)
    out = (w @ v) / guarded
    if fault == "output_staged_in_bfloat16":
        out = out.to(torch.bfloat16)
    if fault == "output_columns_bounded_by_head_dim":
        out = torch.where(torch.arange(v.shape[3]) < dim, out, torch.nan)
    if fault == "tanh of the output":
        out = out.tanh()
    lse = ((base if cols else top) + total.log2())[..., 0]
    lse = lse if fault == "lse_in_base_two" else lse * math.log(2)
    lse = total.log()[..., 0] if fault == "lse_without_maximum" else lse
    lse = (base * math.log(2))[..., 0] if fault == "lse_without_normalizer" else lse
    return out.to(query.dtype), lse


CATALOGUED = (
    "kv_head_modulo", "first_kv_head_for_all", "scale_without_root", "scale_ignored",
    "scale_sign_lost", "scale_applied_twice", "scale_inverted", "bool_mask_inverted",
    "additive_mask_ignored", "additive_mask_added_twice", "next_key_visible", "diagonal_hidden",
    "causal_bottom_right", "maximum_starts_at_zero", "maximum_not_subtracted", "p_in_bfloat16",
    "epsilon_in_normalizer", "zero_normalizer_unguarded", "output_staged_in_bfloat16",
    "lse_in_base_two", "lse_without_maximum", "lse_without_normalizer",
)  # fmt: skip
UNKNOWN = (
    "a slope that nobody asked for", "two keys of the future", "the first key counts twice",
    "tanh of the output",
)  # fmt: skip


def written(fault: str, with_lse: bool) -> Kernel:
    def fn(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
        attn_mask: torch.Tensor | None = None, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> Any:  # fmt: skip
        out, lse = other(query, key, value, attn_mask, is_causal, scale, enable_gqa, fault)
        return (out, lse) if with_lse else out

    return Kernel(fn, name="other", dtypes=("float32", "float16", "bfloat16"))


def failure(subject: Subject) -> tuple[Law, Problem, str | None, Check] | None:
    """The first that the gate's search finds, shrunk as the gate would."""
    search = Search(
        subject, laws(), quota=300, deadline=None, enough=1, checked=lambda *_: None
    )  # fmt: skip
    search.run(1)
    if not search.failures:
        return None
    found = search.failures[0]

    def check(problem: Problem) -> Check:
        return found.law.check(subject.case(problem, found.config))

    def fails(problem: Problem) -> bool:
        case = subject.case(problem, found.config)
        return found.law.applies(case) and check(problem).symptom == found.check.symptom

    problem = shrink(found.problem, fails, subject.space, max_runs=150, max_seconds=10)
    return found.law, problem, found.config, check(problem)


def of_others(dtype: str, faults: Sequence[str], name: str, confused: list[str]) -> None:
    """A line of the table: faults in a kernel of another form, with and without lse."""
    known: Counter[str] = Counter()
    times = []
    for with_lse in (True, False):
        for fault in faults:
            runner = InProcess(written(fault, with_lse))
            target = runner.start()
            space = probe(runner, target, (dtype,)).spaces[dtype]
            subject = Subject(runner, target, space)
            found = failure(subject)
            if found is None:
                continue
            law, problem, config, check = found
            start = time.perf_counter()
            cause = likely(subject.case(problem, config), law, check)
            times.append(time.perf_counter() - start)
            said = outcome(cause, fault)
            known[said] += 1
            if said in ("wrong", "one of two"):
                confused.append(f"{name} {dtype}: {fault} is named {_names(cause)}")
    _line(f"{name} {dtype}", known, None, times)


def main() -> None:
    head(__doc__)
    confused: list[str] = []
    print("| kernel | faults | right | one of two | wrong | silent | wrong if unknown "
          "| seconds (median, most) |")  # fmt: skip
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for kernel in KERNELS:
        for dtype in ("float32", "float16", "bfloat16"):
            of_witnesses(kernel, dtype, confused)
    for dtype in ("float32", "bfloat16"):
        of_others(dtype, CATALOGUED, "written differently,", confused)
    of_others("float32", UNKNOWN, "in no catalogue,", confused)
    print("\n## What was taken for what\n")
    for line in confused:
        print(f"- {line}")


if __name__ == "__main__":
    main()
