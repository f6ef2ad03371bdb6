"""Replay: saved counterexamples, checked again on the kernel as it is now."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from flashcheck import environment
from flashcheck.call import Call, Reply
from flashcheck.case import Case
from flashcheck.examples import Example, ExampleError, load
from flashcheck.fills import Fill
from flashcheck.kernel import Target, TargetError
from flashcheck.law import Law, law_named
from flashcheck.legality import must_be_tried, takes_less, why_not
from flashcheck.loading import one_line
from flashcheck.probe import probe_like
from flashcheck.problem import Problem
from flashcheck.strategies import Space
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess, Worker

Status = Literal["FIXED", "HOLDS", "FAILED", "CHANGED", "ERROR"]

TIMES = 20
"""How often a check is made that failed by chance: a kernel with a race may pass once."""

_MARKS: dict[Status, str] = {
    "FIXED": "+", "HOLDS": "=", "FAILED": "x", "CHANGED": "~", "ERROR": "!"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of one example.

    FIXED    the check holds now
    HOLDS    the check holds; it never failed (a captured call)
    FAILED   it fails as before: the same verdict and symptom. A captured call: it fails
    CHANGED  it fails otherwise, or proves nothing
    ERROR    it could not be made again; `message` says why and what to do

    target is the kernel that was run, as reports name it; example and check are None where it
    did not come so far; environment is that of the replay ({} where nothing was run).
    """

    example_id: str
    path: Path
    status: Status
    message: str = ""
    target: str = ""
    example: Example | None = None
    check: Check | None = None
    environment: dict[str, Any] = field(default_factory=dict)


def replay(
    paths: Iterable[str | os.PathLike[str]],
    kernel: str | None = None,
    device: str | None = None,
    timeout: float = 60.0,
    isolate: bool = True,
) -> list[Replayed]:
    """Check examples again, in the order of `paths`; never raises for a bad one.

    kernel   a TARGET to run instead of those that the examples name
    device   "cpu" or "cuda[:i]"; None is each example's own, or the kernel's where that is
             not there
    timeout  seconds for a call after a kernel's first
    isolate  run kernels in processes of their own
    """
    files = [Path(path) for path in paths]
    done: dict[int, Replayed] = {}
    groups: dict[tuple[str, str | None], list[tuple[int, Example]]] = {}
    for number, file in enumerate(files):
        try:
            example = load(file)
        except ExampleError as error:
            done[number] = Replayed(file.stem, file, "ERROR", str(error))
            continue
        key = (kernel or example.target, device or _device_here(example.device))
        groups.setdefault(key, []).append((number, example))
    for (spec, where), group in groups.items():
        with Worker(spec, where, timeout) if isolate else InProcess(spec, where) as runner:
            session = _Session(runner, other=kernel is not None)
            for number, example in group:
                done[number] = session.replay(example, files[number])
    return [done[number] for number in range(len(files))]


def exit_code(replayed: Sequence[Replayed]) -> int:
    """0 all fixed, all hold or nothing to do, 1 any FAILED or CHANGED, otherwise 2 for any ERROR.

    A kernel that is known to be wrong is the stronger news: 1 says so whatever else could
    not be run.
    """
    statuses = {r.status for r in replayed}
    return 1 if statuses & {"FAILED", "CHANGED"} else 2 if "ERROR" in statuses else 0


# -- one kernel ---------------------------------------------------------------------------


class _Session:
    """Replays examples on one kernel. `other`: it is not the one that they name."""

    def __init__(self, runner: Worker | InProcess, other: bool) -> None:
        self.runner = runner
        self.other = other
        self._benign: dict[Problem, Reply] = {}
        self._spaces: dict[tuple[str, int, int], Space | None] = {}
        self._refusal = ""

    def replay(self, example: Example, path: Path) -> Replayed:
        failed = Replayed(example.id, path, "ERROR", target=example.name, example=example)
        try:
            # What cannot be loaded once is not tried again: it may have taken minutes.
            target = None if self._refusal else self.runner.start()
        except TargetError as error:
            target, self._refusal = None, str(error)
        if target is None:
            hint = "" if self.other else "; pass --kernel TARGET"
            return replace(failed, message=self._refusal + hint)
        failed = replace(failed, target=target.name)
        law = law_named(example.property)
        if law is None:
            message = f"this flashcheck has no property {example.property!r}; it was renamed"
            return replace(failed, message=f"{message} or is newer")
        cannot = target.not_taken(example.inputs)
        if cannot:
            return replace(failed, message=f"{target.name} {cannot}, which this example uses")
        config, note = _config(example, target)
        try:
            status, check, message = self._judge(example, target, law, config)
        except TargetError as error:
            return replace(failed, message=str(error))
        except Exception as error:
            return replace(failed, message=f"flashcheck itself failed: {one_line(error)}")
        same_source = example.source is not None and example.source == target.source
        if status == "FIXED" and same_source and not self.other:
            message = _also(
                message,
                "the kernel's file is unchanged since it was recorded: the result depends on "
                "earlier calls, on memory or on other files",
            )
        return replace(
            failed, status=status, check=check, message=_also(message, note),
            environment=_environment(self.runner.device),
        )  # fmt: skip

    def _judge(
        self, example: Example, target: Target, law: Law, config: str | None
    ) -> tuple[Status, Check | None, str]:
        problem, space = example.problem, example.space(target)
        # The first call of a process has minutes, for compiling; a hang must not.
        benign = self._try_benign(example, config)
        if self.other and must_be_tried(target):
            space = self._tried(target, problem) or space
        never_failed = example.check.verdict is Verdict.PASS
        chance = example.check.verdict is Verdict.NONDETERMINISTIC

        def judge(space: Space) -> Check | str:
            """The check, or why there is none."""
            case = Case(
                self.runner, target, problem, config, self.runner.device,
                replace(space, backward=law.backward), inputs=example.captured,
            )  # fmt: skip
            cannot = why_not(problem, case.inputs, space)
            if cannot or not law.applies(case):
                cannot = cannot and f"{target.name} {cannot}"
                return cannot or f"{law.name} does not apply to {target.name} on this problem"
            return law.check(case)

        for _ in range(TIMES if chance else 1):
            check = judge(space)
            if isinstance(check, str) or check.verdict is not Verdict.PASS:
                break
        unsure = (Verdict.CRASH, Verdict.UNSUPPORTED)
        if not isinstance(check, str) and check.verdict in unsure:
            # A law may have chosen what this kernel refuses by an exception.
            tried = self._tried(target, problem)
            if tried is not None and takes_less(tried, space, problem):
                check = judge(tried)
        if isinstance(check, str):
            return "ERROR", None, check
        if never_failed and check.verdict in (Verdict.PASS, Verdict.VACUOUS):
            vacuous = check.verdict is Verdict.VACUOUS
            return "HOLDS", check, "vacuous: the bound says nothing" if vacuous else ""
        if check.verdict is Verdict.PASS:
            return "FIXED", check, f"held {TIMES} times" if chance else ""
        if check.verdict is Verdict.UNSUPPORTED:
            return "ERROR", check, f"{target.name} refuses it: {check.message}"
        if (check.verdict, check.symptom) == (example.check.verdict, example.check.symptom):
            return "FAILED", check, ""
        if check.symptom.startswith("raises ") and benign.status in ("error", "unsupported"):
            # It cannot do the benign problem with the same features either.
            return "ERROR", check, f"{target.name} refuses such problems: {check.message}"
        if check.failed and never_failed:
            return "FAILED", check, check.message
        was, now = (
            _outcome(example.check.verdict, example.check.symptom),
            _outcome(check.verdict, check.symptom),
        )
        news = "" if check.verdict is Verdict.VACUOUS else check.message
        return "CHANGED", check, f"was {was}, now {now}" + (f": {news}" if news else "")

    def _tried(self, target: Target, problem: Problem) -> Space | None:
        """What the kernel takes of calls like this one, found by trying it; None: none."""
        outline = problem.dtype, problem.dim, problem.page
        if outline not in self._spaces:
            self._spaces[outline] = probe_like(self.runner, target, problem)
        return self._spaces[outline]

    def _try_benign(self, example: Example, config: str | None) -> Reply:
        problem = _benign(example.problem)
        if problem not in self._benign:
            self._benign[problem] = self.runner.call(Call(problem.inputs(), config))
        return self._benign[problem]


def _benign(p: Problem) -> Problem:
    """A tame problem with the same features."""
    normal = Fill(noise="normal", spread=1.0)
    mask = None if p.mask is None else replace(p.mask, hides="tail", amount=3, bias=Fill())
    lengths: dict[str, Any] = {}
    if p.packed:
        lengths = {"seqlens_q": (10, 6), "seqlens_k": (10, 6)}
    elif p.page:
        lengths = {"seqlens_k": (11,), "page": p.page, "len_k": -(-16 // p.page) * p.page}
    plain = Problem(
        dtype=p.dtype, heads=2, kv_heads=1 if p.enable_gqa else 2, len_q=16, len_k=16, dim=p.dim,
        dim_v=p.dim_v, q=normal, k=normal, v=normal, is_causal=p.is_causal, mask=mask,
        scale=None if p.scale is None else 0.5,
    )  # fmt: skip
    return replace(plain, **lengths)


def _config(example: Example, target: Target) -> tuple[str | None, str]:
    """The configuration to run, and a sentence where it is not the recorded one."""
    if example.config in target.configs:
        return example.config, ""
    first = target.configs[0]
    if example.check.verdict is Verdict.PASS:  # it was captured, for any kernel
        return first, ""
    if example.config is None:
        return first, f"recorded without a config, run with {first!r}"
    instead = "without one" if first is None else f"with {first!r}"
    return first, f"config {example.config!r} is gone, run {instead}"


def _device_here(recorded: str) -> str | None:
    """The recorded device, another GPU where that index is not there, or None."""
    import torch

    if not recorded.startswith("cuda"):
        return recorded
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = int(recorded.partition(":")[2] or 0)
    return recorded if index < count else "cuda" if count else None


@lru_cache(maxsize=8)
def _environment(device: str) -> dict[str, Any]:
    return environment.collect(device)


def _outcome(verdict: Verdict, symptom: str) -> str:
    return f"{verdict} ({symptom})" if symptom else str(verdict)


def _also(message: str, more: str) -> str:
    return "; ".join(filter(None, (message, more)))


# -- for people ---------------------------------------------------------------------------


def render(replayed: Sequence[Replayed], width: int = 100) -> str:
    """The terminal's text, no line wider than `width`."""
    if not replayed:
        return "Nothing to replay: there is no example"
    folders = {r.path.parent for r in replayed}
    place = f" from {folders.pop()}" if len(folders) == 1 else ""
    n = len(replayed)
    lines = [f"Replaying {n} {'example' if n == 1 else 'examples'}{place}", ""]
    whose = [_whose(r) for r in replayed]
    column = min(max(map(len, whose)), 34)
    for r, who in zip(replayed, whose, strict=True):
        start = f"  {_MARKS[r.status]} {r.status:<7}  {r.example_id:<11}  "
        if len(who) <= column:
            lines += _row(start + who.ljust(column), _result(r), width)
        else:
            lines += [_clip(start + who, width), *_row(" " * (len(start) - 2), _result(r), width)]
    lines.append("")
    told = dict.fromkeys(text for r in replayed if (text := _moved(r)))
    for text in told:
        lines += textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ")
    counts = [
        f"{sum(r.status == status for r in replayed)} {status.lower()}"
        for status in _MARKS
        if any(r.status == status for r in replayed)
    ]
    summary = ", ".join(counts)
    lines.append(f"{summary:<65} exit {exit_code(replayed)}")
    return "\n".join(lines)


def _row(start: str, text: str, width: int) -> list[str]:
    """`start`, then the text wrapped in the column beside it, or below where that is narrow."""
    if not text:
        return [start.rstrip()]
    indent = " " * (len(start) + 2 if len(start) <= width // 2 + 16 else 17)
    return textwrap.wrap(
        text, width, initial_indent=start + "  ", subsequent_indent=indent, break_on_hyphens=False
    )


def _whose(r: Replayed) -> str:
    return "" if r.example is None else f"{r.target} {r.example.dtype}"


def _result(r: Replayed) -> str:
    if r.status in ("ERROR", "CHANGED") or r.example is None or r.check is None:
        return r.message
    if r.status == "HOLDS":
        then = f"ratio {_number(r.check.ratio)}"
    elif r.example.check.verdict is Verdict.VIOLATION:
        then = f"ratio {_number(r.example.check.ratio)} → {_number(r.check.ratio)}"
    else:
        then = f"{r.example.check.verdict} → {r.check.verdict}"
    return f"{then}  ({r.message})" if r.message else then


def _number(x: float) -> str:
    """Two digits: "0.31", "12", "2.0e3", "inf"; never 1.0 for what is not 1."""
    if not 1e-3 <= abs(x) < 1e3:
        mantissa, e, exponent = f"{x:.1e}".partition("e")
        return f"{mantissa}e{int(exponent)}" if e and x else f"{x:g}"
    text = f"{x:.2g}" if abs(x) < 100 else f"{x:.0f}"
    return f"{x:.6g}" if float(text) == 1 else text


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def _moved(r: Replayed) -> str:
    """Where it was recorded and where replayed, when that may change bits; else ""."""
    if r.example is None or not r.environment or not r.example.environment:
        return ""
    if r.status == "HOLDS":  # there is nothing to compare with
        return ""
    then, now = r.example.environment, r.environment
    what = differences(then, now)
    if not what:
        return ""
    before, after = _machine(then), _machine(now)
    if before == after:
        return f"recorded with {', '.join(what)}  (bits may differ)"
    return f"recorded on {before}, replayed on {after}  (bits may differ)"


def differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What differs between two environments and may change a result: "torch 2.13, now 2.14"."""
    first, second = _facts(then), _facts(now)
    return [
        f"{name} {first.get(name, 'absent')}, now {second.get(name, 'absent')}"
        for name in sorted({*first, *second})
        if first.get(name) != second.get(name)
    ]


def _facts(env: dict[str, Any]) -> dict[str, Any]:
    gpu, cpu = env.get("gpu") or {}, env.get("cpu") or {}
    versions = env.get("versions") or {}
    facts: dict[str, Any] = {n: versions.get(n) for n in ("flashcheck", "numpy", "torch", "triton")}
    facts |= {"GPU": gpu.get("name"), "CUDA": gpu.get("cuda"), "driver": gpu.get("driver")}
    facts |= {"CPU": cpu.get("model"), "SIMD": cpu.get("simd")}
    facts |= env.get("numeric") or {}
    # Workers run one thread, whatever these say.
    variables = env.get("variables") or {}
    facts |= {n: v for n, v in variables.items() if not n.endswith("_NUM_THREADS")}
    return {name: value for name, value in facts.items() if value is not None}


def _machine(env: dict[str, Any]) -> str:
    gpu, cpu = env.get("gpu") or {}, env.get("cpu") or {}
    torch = (env.get("versions") or {}).get("torch")
    name = gpu.get("name") or f"CPU {cpu.get('model') or ''}".strip()
    return f"{name} / torch {torch}" if torch else str(name)
