"""Checking: one kernel on one problem, judged by one property, in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flashcheck import interpreter
from flashcheck.case import Case
from flashcheck.explanation.diagnose import diagnosed
from flashcheck.explanation.explain import counterexample, input_lines
from flashcheck.explanation.hints import hints
from flashcheck.explanation.models import likely
from flashcheck.explanation.runs import which_is_wrong
from flashcheck.formats import EVERY
from flashcheck.kernel import Kernel, Target
from flashcheck.law import Law, Subject, law_named, laws
from flashcheck.legality import assumed, must_be_tried, takes_less, why_not
from flashcheck.probe import probe, probe_like
from flashcheck.problem import Problem
from flashcheck.sentence import describe
from flashcheck.strategies import Space
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess

MOST_READY = 8
"""Kernels that are kept ready for their next check."""


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
    problem, the kernel contract leaves the problem open, or the kernel refuses it or is declared
    not to take it: where it raises an exception, it is tried on benign problems too, as the gate
    does first. `raise_if_failed` of what is returned raises CheckFailed, whose text is the
    counterexample.

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
    if cannot := target.not_taken(problem.inputs()):
        message = f"{target.name} {cannot}, which this problem has: {describe(problem)}"
        return Check(law.name, Verdict.UNSUPPORTED, message=message)
    space = assumed(target, problem)
    if must_be_tried(target):
        space = _tried(kernel, device, problem) or space
    subject = Subject(runner, target, replace(space, backward=law.backward), runner.device)
    case, found = _judge(law, subject, problem, config)
    # What the kernel refuses by an exception is found by trying, as the gate does first.
    if found.verdict in (Verdict.CRASH, Verdict.UNSUPPORTED):
        tried = _tried(kernel, device, problem)
        if tried is None:
            message = f"{target.name} refuses {problem.dtype} with head size {problem.dim}"
            return Check(law.name, Verdict.UNSUPPORTED, message=f"{message}: {found.message}")
        if takes_less(tried, space, problem):
            subject = replace(subject, space=replace(tried, backward=law.backward))
            case, found = _judge(law, subject, problem, config)
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


def _judge(law: Law, subject: Subject, problem: Problem, config: str | None) -> tuple[Case, Check]:
    """The check, UNSUPPORTED where the kernel does not take the problem or the law is not about
    it."""
    case, name = subject.case(problem, config), subject.target.name
    if cannot := why_not(problem, case.inputs, subject.space):
        message = f"{name} {cannot}. The problem: {describe(problem)}"
        return case, Check(law.name, Verdict.UNSUPPORTED, message=message)
    if not law.applies(case):
        return case, Check(
            law.name,
            Verdict.UNSUPPORTED,
            message=f"{law.name} ({law.statement}) says nothing about {name} on this "
            f"problem: {describe(problem)}. Choose another property, or another problem",
        )
    return case, law.check(case)


@dataclass(slots=True)
class _Running:
    """A kernel that is ready, and what was found by trying it, for each `_outline`."""

    runner: InProcess
    target: Target
    tried: dict[Hashable, Space | None] = field(default_factory=dict)


_running: dict[tuple[Hashable, str | None], _Running] = {}


def _tried(
    kernel: str | Kernel | Callable[..., Any], device: str | None, p: Problem
) -> Space | None:
    """What the kernel takes of calls like this one; None: none of them."""
    running = _running[_key(kernel), device]
    outline = p.dtype, p.dim, p.page
    if outline not in running.tried:
        running.tried[outline] = probe_like(running.runner, running.target, p)
    return running.tried[outline]


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
        _running[key] = _Running(runner, target)
    return _running[key].runner, _running[key].target


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
        "If this is intended": hints(case, law, found, named=cause.faults if cause else ()),
        "Again": (
            f"problem = flashcheck.Problem.from_dict({case.problem.to_dict()})",
            f"flashcheck.check({name}, problem{options}).raise_if_failed()",
        ),
        "Smaller, and compared with its neighbours": (f"flashcheck.gate([{name}])",),
    }
    sentence, shown = diagnosed(case, law, found)
    blamed = which_is_wrong(case, law, shown)
    return f"{law.name} of {name}\n" + counterexample(
        shown, sentence, sections, law=law, blamed=blamed
    )
