"""Hints: declarations under which the failing check holds, each one measured.

A kernel may do something else than the contract's default on purpose. Where the same check
passes under another declaration, the hint says which; whether it is intended is for the
kernel's author to say.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from flashcheck.call import Call, Reply
from flashcheck.case import BadReply, Case, Runner
from flashcheck.explanation import rows
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract, Kernel
from flashcheck.law import Law
from flashcheck.problem import Problem
from flashcheck.sequences import lengths, with_lengths
from flashcheck.verdict import Check, Verdict

MAX_HINTS = 2

MEANT = {
    "p_in_bfloat16": 'p_dtype="bfloat16"', "scaled_query_rounded": "scale_in_input_dtype=True",
    "subnormal_weights_flushed": "flushes_subnormals=True", "tf32_dot": 'qk="tf32"',
}  # fmt: skip
"""Faults that are what a wider contract allows. The error of any other may lie within one too."""


class _Base2:
    """A runner that takes the kernel's lse for a logarithm to base 2."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def submit(self, call: Call) -> None:
        self.runner.submit(call)

    def result(self) -> Reply:
        reply = self.runner.result()
        return replace(reply, lses=[lse * math.log(2) for lse in reply.lses])


def hints(
    case: Case,
    law: Law,
    check: Check,
    *,
    named: Collection[str] = (),
    beside: Sequence[tuple[Law, Case]] = (),
) -> tuple[str, ...]:
    """What to declare so that the failed `check` of `law` on `case` passes, most telling first.

    named: the faults, as in kernels/faults, that are the likely cause. No wider bound is offered
    in their place, unless it allows just that. beside: other failures of the kernel; a wider
    bound that leaves them failing is not what the kernel was meant to keep.
    """
    if check.verdict is not Verdict.VIOLATION or check.worst is None:
        return ()
    # A law about equal bits holds under every contract, and no declaration is about gradients.
    if law.name.startswith("poison_") or law.backward:
        return ()
    # Where the result is not reproducible, a declaration would explain nothing.
    if _holds(case, law, case.kernel) or rows.unwritten(case, case.inputs) is not None:
        return ()
    found: list[str] = []
    for text in _passing(case, law, check, named, beside):
        found.append(text)
        if len(found) == MAX_HINTS:
            break
    # It may have passed by itself meanwhile.
    return () if found and _holds(case, law, case.kernel) else tuple(found)


def _passing(
    case: Case,
    law: Law,
    check: Check,
    named: Collection[str],
    beside: Sequence[tuple[Law, Case]],
) -> Iterator[str]:
    kernel, p = case.kernel, case.problem
    sizes = lengths(p)
    if p.is_causal and any(queries != keys for queries, keys in sizes):
        other: Literal["top_left", "bottom_right"] = (
            "top_left" if kernel.causal_alignment == "bottom_right" else "bottom_right"
        )
        aligned = replace(kernel, causal_alignment=other)
        # One query tells the alignment from no mask, or one off by one, only at other lengths.
        side = max(n for size in sizes for n in size)
        longer = [(queries + 2, keys + 2) for queries, keys in sizes]
        # What is so for a few queries alone is no declaration.
        many = [(queries + 37, keys + 40) for queries, keys in sizes]
        others = (sizes, longer, many, [(side, side)] * len(sizes))
        if all(_holds(case, law, aligned, problem=with_lengths(p, each)) for each in others):
            yield _say(
                f"a {other.replace('_', '-')} aligned causal mask", f'causal_alignment="{other}"'
            )
    on_lse = check.worst is not None and check.worst.output == "lse" and kernel.lse_base == "e"
    if on_lse and _holds(case, law, kernel, runner=_Base2(case.runner)):
        yield _say("an lse to base 2", 'lse_base="2"')
    unspecified = replace(kernel, masked_rows="unspecified")
    keyless = not case.attention().seen.all()
    if kernel.masked_rows == "zero" and keyless and _holds(case, law, unspecified):
        if _keyless_are_nan(case):
            yield _say("NaN in rows that see no key", 'masked_rows="nan"')
        elif _keyless_read_nothing(case):
            # What they hold may be meant, or may not: nothing that was run tells.
            yield (
                "only rows that see no key are wrong, and no key or value changes them: if your "
                "kernel promises nothing about such rows, declare "
                'flashcheck.Kernel(fn, masked_rows="unspecified")'
            )
    positive = _positive(case, law)
    if positive is not None:
        yield positive
    yield from _contracts(case, law, check, named, beside)


def _say(what: str, declare: str) -> str:
    return f"agrees with {what}: if that is intended, declare flashcheck.Kernel(fn, {declare})"


def _holds(
    case: Case,
    law: Law,
    kernel: Kernel,
    *,
    runner: Runner | None = None,
    problem: Problem | None = None,
    inputs: Inputs | None = None,
) -> bool:
    """Whether the law passes under other declarations, or on another problem or its `inputs`."""
    other = Case(
        runner or case.runner, replace(case.target, kernel=kernel), problem or case.problem,
        case.config, case.device, case.space, inputs,
    )  # fmt: skip
    return law.applies(other) and law.check(other).verdict is Verdict.PASS


def _keyless_are_nan(case: Case) -> bool:
    try:
        rows = case.out()[~case.attention().seen.astype(bool)]
    except BadReply:
        return False
    return bool(np.isnan(rows).all())


def _keyless_read_nothing(case: Case) -> bool:
    """Whether rows that see no key stay what they are, whatever k and v hold."""
    x, rows = case.inputs, ~case.attention().seen.astype(bool)
    rng = np.random.default_rng(0)
    k, v = (x.format.round(rng.standard_normal(t.shape)) for t in (x.k, x.v))
    other = x.with_(k=k, v=v)
    try:
        pairs = [(case.out(), case.out(other))]
        lse = case.lse(), case.lse(other)
    except BadReply:
        return False
    if lse[0] is not None and lse[1] is not None:
        pairs.append((lse[0], lse[1]))
    return all(np.array_equal(a[rows], b[rows], equal_nan=True) for a, b in pairs)


def _positive(case: Case, law: Law) -> str | None:
    p = case.problem
    if p.scale is None or p.scale > 0 or case.kernel.positive_scale:
        return None
    other = replace(p, scale=abs(p.scale) or 1.0)
    # The scores keep their values where the sign, or the zero, moves from the scale to q.
    x = case.inputs
    turned = x.with_(q=x.q * np.sign(p.scale), scale=other.scale)
    if not (
        _holds(case, law, case.kernel, problem=other)
        and _holds(case, law, case.kernel, problem=other, inputs=turned)
    ):
        return None
    which = "zero" if p.scale == 0 else "negative"
    return (
        f"only a {which} scale shows it (it passes with scale {abs(p.scale) or 1.0:g}): if scales "
        "are meant to be positive, declare flashcheck.Kernel(fn, positive_scale=True)"
    )


def _contracts(
    case: Case,
    law: Law,
    check: Check,
    named: Collection[str],
    beside: Sequence[tuple[Law, Case]],
) -> Iterator[str]:
    """Wider numeric contracts, where the error is finite."""
    if not math.isfinite(check.ratio):
        return
    kernel, p = case.kernel, case.problem
    for text, contract in _wider(kernel.contract, case):
        wider = replace(kernel, contract=contract)
        if named and not any(MEANT.get(fault) == text for fault in named):
            continue
        # A wider bound might fit one problem by chance.
        alike = [replace(p, seed=p.seed + i) for i in range(3)]
        if not all(_holds(case, law, wider, problem=other) for other in alike):
            continue
        rounds = contract.scale_in_input_dtype and not kernel.contract.scale_in_input_dtype
        if rounds and not _holds_with_exact_scale(case, law):
            continue
        if not all(_excused(other, its, wider) for its, other in beside):
            continue
        yield _say(f"a contract with {text}", f"contract=flashcheck.Contract({text})")
        return


def _excused(case: Case, law: Law, kernel: Kernel) -> bool:
    """Whether another failure is none under other declarations."""
    target = replace(case.target, kernel=kernel)
    other = Case(
        case.runner, target, case.problem, case.config, case.device, case.space, case.captured
    )  # fmt: skip
    return not law.check(other).failed


def _holds_with_exact_scale(case: Case, law: Law) -> bool:
    """Whether the law passes with a power of two for a scale, by which nothing is rounded.

    True where the kernel takes no scale, so that this cannot be asked.
    """
    if "scale" not in case.space.options:
        return True
    scale = math.copysign(
        2.0 ** round(math.log2(abs(case.inputs.exact_scale))), case.inputs.exact_scale
    )
    return _holds(case, law, case.kernel, problem=replace(case.problem, scale=scale))


def _wider(c: Contract, case: Case) -> Iterator[tuple[str, Contract]]:
    """(how it is written, the contract), the closest to the default first."""
    dtype = case.problem.dtype
    if c.normalizer == "before_rounding" and dtype != "float64":
        yield 'normalizer="after_rounding"', replace(c, normalizer="after_rounding")
        yield 'normalizer="either"', replace(c, normalizer="either")
    if dtype == "float32":
        yield "flushes_subnormals=True", replace(c, flushes_subnormals=True)
        yield 'qk="tf32x3"', replace(c, qk="tf32x3")
        yield 'qk="tf32"', replace(c, qk="tf32")
        yield 'p_dtype="float16"', replace(c, p_dtype="float16")
        yield 'p_dtype="bfloat16"', replace(c, p_dtype="bfloat16")
    # A scale that is 0 or a power of two rounds nothing.
    rounds = abs(math.frexp(case.inputs.exact_scale)[0]) not in (0.0, 0.5)
    if dtype in ("float16", "bfloat16") and rounds:
        yield "scale_in_input_dtype=True", replace(c, scale_in_input_dtype=True)
