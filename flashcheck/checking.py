"""Checking: one kernel on one problem, judged by one property, in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import Any

from flashcheck import interpreter
from flashcheck.case import Case
from flashcheck.explanation.diagnose import diagnose
from flashcheck.explanation.explain import counterexample, input_lines
from flashcheck.explanation.hints import hints
from flashcheck.explanation.models import likely
from flashcheck.formats import EVERY
from flashcheck.kernel import Kernel, Target
from flashcheck.law import Law, Subject, law_named, laws
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.sentence import describe
from flashcheck.strategies import Space
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess

MOST_READY = 8
"""Kernels that are kept ready for their next check."""

# Ranks 1 and 3 are a kernel's free choice, and nothing was probed.
_FORMS = frozenset(form for form in Space().mask_forms if form[2] in (2, 4))


def check(
    kernel: str | Kernel | Callable[..., Any],
    problem: Problem,
    *,
    property: str = "agreement",
    config: str | None = None,
    device: str | None = None,
) -> Check:
    """Run a kernel on one problem in this process, and judge it by one property.

    kernel: a callable, a Kernel, or a TARGET string, which is loaded once. property: a name
    that `flashcheck list properties` shows. config: the name of one of the kernel's
    configurations; None takes one by the problem's seed. device: cpu or cuda[:i]; None takes
    the CPU, or else the first that the kernel declares.

    The verdict is UNSUPPORTED, with a message, where the property says nothing about the
    problem, or the kernel refuses it or is declared not to take it. `raise_if_failed` of what
    is returned raises CheckFailed, whose text is the counterexample.

    Raises ValueError for an unknown property or configuration, TargetError for a kernel that
    cannot be loaded or a device that is not there.
    """
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem is of type {type(problem).__name__}, not a flashcheck.Problem; "
            "assert_within_bound judges a result for tensors of your own"
        )
    law = law_named(property)
    if law is None:
        raise ValueError(f"property {property!r} is none of {', '.join(x.name for x in laws())}")
    runner, target = _ready(kernel, device)
    if config is not None and config not in target.configs:
        known = ", ".join(target.kernel.configs or {}) or "none"
        raise ValueError(f"{target.name} has no configuration {config!r}; it has {known}")
    space = Space(
        dtype=problem.dtype, mask_forms=_FORMS, backward=law.backward,
        options=frozenset({*target.options, *target.required}),
    )  # fmt: skip
    case = Subject(runner, target, space, runner.device).case(problem, config)
    if cannot := target.not_taken(case.inputs):
        message = f"{target.name} {cannot}, which this problem has: {describe(problem)}"
        return Check(law.name, Verdict.UNSUPPORTED, message=message)
    if not law.applies(case):
        return Check(
            law.name,
            Verdict.UNSUPPORTED,
            message=f"{law.name} ({law.statement}) says nothing about {target.name} on this "
            f"problem: {describe(problem)}. Choose another property, or another problem",
        )
    found = law.check(case)
    if found.failed:
        name = repr(kernel) if isinstance(kernel, str) else target.name
        found = replace(found, explain=partial(_explain, name, case, law, found))
    return found


def space(
    kernel: str | Kernel | Callable[..., Any], dtype: str = "float32", *, device: str | None = None
) -> Space:
    """What a kernel takes in one dtype, found by trying it: `problems(space(kernel))`.

    Raises ValueError where the dtype is unknown or refused, TargetError as `check` does.
    """
    if dtype not in EVERY:
        raise ValueError(f"dtype {dtype!r} is none of {', '.join(EVERY)}")
    runner, target = _ready(kernel, device)
    before = interpreter.launches()
    probed = probe(runner, target, (dtype,))
    if interpreter.launches() > before:
        # Slow: smaller problems. Other kernels of this process say nothing about this one.
        probed = probe(runner, replace(target, interpreted=True), (dtype,))
    if dtype not in probed.spaces:
        raise ValueError(f"{target.name} refuses {dtype}: {probed.refused[0][1]}")
    return probed.spaces[dtype]


_running: dict[tuple[Hashable, str | None], tuple[InProcess, Target]] = {}


def _ready(
    kernel: str | Kernel | Callable[..., Any], device: str | None
) -> tuple[InProcess, Target]:
    """The kernel, loaded; a kernel that was used before is not loaded again."""
    key = (_key(kernel), device)
    if key not in _running:
        runner = InProcess(kernel, device)
        target = runner.start()
        if len(_running) >= MOST_READY:
            del _running[next(iter(_running))]
        _running[key] = runner, target
    return _running[key]


def _key(kernel: Hashable) -> Hashable:
    try:
        hash(kernel)
    except TypeError:
        # A Kernel with lists or dicts. Its runner keeps it alive, so that no other has its id.
        return id(kernel)
    return kernel


def _explain(name: str, case: Case, law: Law, found: Check) -> str:
    """The counterexample as text; the kernel is run again to find out what is wrong."""
    options = "".join(
        f", {option}={value!r}"
        for option, value, default in (
            ("property", law.name, "agreement"),
            ("config", case.config, None),
            ("device", case.device, "cpu"),
        )
        if value != default
    )
    cause = None if law.backward else likely(case, law, found)
    sections = {
        "Likely cause": () if cause is None else (cause.sentence,),
        "Problem": input_lines(case, law),
        "If this is intended": hints(case, law, found),
        "Again": (
            f"problem = flashcheck.Problem.from_dict({case.problem.to_dict()})",
            f"flashcheck.check({name}, problem{options}).raise_if_failed()",
        ),
        "Smaller, and compared with its neighbours": (f"flashcheck.gate([{name}])",),
    }
    return f"{law.name} of {name}\n" + counterexample(found, diagnose(case, law, found), sections)
