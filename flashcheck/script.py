"""Script: a failure as a stand-alone Python file, to paste into a bug report.

The file needs torch and the kernel, not flashcheck. It makes the calls that the law makes and
asserts the comparison that failed, at the element where it failed most.
"""

from __future__ import annotations

import importlib.metadata
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashcheck import literals, placement, preamble, reference
from flashcheck.call import Call
from flashcheck.case import Case, Runner
from flashcheck.examples import Example
from flashcheck.explanation.runs import which_is_wrong
from flashcheck.formats import FLOAT8
from flashcheck.kernel import Target
from flashcheck.law import Law, law_named
from flashcheck.statements import PLACE, READ, Calls, ScriptError
from flashcheck.trace import Comparison, Element, Trace, trace
from flashcheck.verdict import Verdict

WIDTH = 92
NEGLIGIBLE = 1e-3
"""Share of a bound below which the uncertainty of what is expected is not worth a number."""

AGAIN = 20
"""How often a call is repeated whose result changes by chance."""


@dataclass(frozen=True, slots=True)
class Script:
    """text: the file. tensors: {name: (dtype, values)} of what is too large for it, for a
    safetensors file beside it."""

    text: str
    tensors: dict[str, tuple[str, Any]]


def script(example: Example, target: Target, file: str | None = None) -> Script:
    """The script of an example for its kernel, as `loading` describes it now.

    file: the name of the safetensors file for large tensors; None where there can be none.
    Raises ScriptError.
    """
    if not example.check.failed:
        raise ScriptError(f"{example.id} never failed: there is nothing to reproduce")
    law = law_named(example.property)
    if law is None:
        raise ScriptError(
            f"this flashcheck has no property {example.property!r}; it was renamed or is newer"
        )

    def case(runner: Runner) -> Case:
        return Case(
            runner, target, example.problem, example.config, example.device,
            example.space(target), inputs=example.captured,
        )  # fmt: skip

    traced = trace(law, case, example.check)
    calls = Calls(example, target, traced, file)
    text = _Writer(example, target, law, traced, calls).text(case)
    return Script(text, calls.tensors)


@dataclass(slots=True)
class _Writer:
    example: Example
    target: Target
    law: Law
    traced: Trace
    calls: Calls

    def text(self, case: Callable[[Runner], Case]) -> str:
        worst, device = self.example.check.worst, self.example.device
        paged = any(call.inputs.pages is not None for call in self.traced.calls)
        used = "\n".join([*self.calls.inputs(), "", *self._check(case(_Nobody()))])
        helpers = (
            ("bits(", literals.BASE64),
            ("read(", READ.replace("{file}", self.calls.file or "")),
            ("place(", PLACE),
            ("differentiate(", preamble.differentiate(self.target, self.calls.gradient)),
            ("run(", preamble.run(self.target, "out" if worst is None else worst.output, paged)),
        )
        first = "\n".join(preamble.environment(self.target, device))
        kernel = "\n".join(preamble.kernel(self.target, device))
        code = "\n\n\n".join([kernel, *(text for name, text in helpers if name in used), used])
        imports = "\n".join(
            f"import {name}"
            for name in ("base64", "json", "math", "os", "pathlib", "runpy", "sys")
            if re.search(rf"\b{name}\.", f"{first}\n{code}")
        )
        return "\n\n".join(filter(None, (self._docstring(), imports, first, code))) + "\n"

    # -- the top --------------------------------------------------------------------------

    def _docstring(self) -> str:
        e = self.example
        version = importlib.metadata.version("flashcheck")
        said = e.text.split("\n\n")[0].splitlines()[1:] or [e.check.message]
        lines = [
            f"{e.name} in {e.dtype} fails {e.property}: {self.law.statement}.",
            "",
            *textwrap.wrap(" ".join(said), WIDTH),
            "",
            *textwrap.wrap(e.sentence, WIDTH),
            "",
            f"Written by flashcheck {version} from the example {e.id}. {self._needs()}",
        ]
        wrapped = [part for line in lines for part in (textwrap.wrap(line, WIDTH) or [""])]
        text = "\n".join(wrapped).replace("\\", "\\\\").replace('"""', "'''")
        return f'"""{text}\n"""'

    def _needs(self) -> str:
        if self.target.wrapped:
            return "The kernel is declared as a flashcheck.Kernel, so that it imports flashcheck."
        return "Needs torch and the kernel alone."

    # -- the comparison -------------------------------------------------------------------

    def _check(self, case: Case) -> list[str]:
        check, found = self.example.check, self.traced.comparison
        if check.symptom == "inputs modified":
            return self._unmodified()
        if check.symptom == "output form" and not any(c.grad_out for c in self.traced.calls):
            return self._form()
        if found is None:
            return self._calls_alone()
        if found.kind == "finite":
            return [
                *self._value("got", found.got),
                'print(f"got {got}")',
                *_assert("math.isfinite(got)"),
            ]
        if found.other is not None and found.got.call == found.other.call:
            return self._again(found.got.call)
        return self._compared(found, case)

    def _calls_alone(self) -> list[str]:
        """What is no comparison of two numbers: the calls, and what flashcheck saw."""
        check = self.example.check
        lines = [f"# {line}" for line in textwrap.wrap(f"{check.verdict}: {check.message}", WIDTH)]
        if check.verdict not in (Verdict.CRASH, Verdict.TIMEOUT):
            lines.append(
                "# This script makes the call and does not judge it: flashcheck replay does."
            )
        for number in self.calls.used():
            before, call = self.calls.call(number)
            lines += [*before, call]
        return [*lines, 'print("the kernel returned")']

    def _form(self) -> list[str]:
        before, tensors, options = self.calls.arguments(0)
        b, hq, _, lq, _, _, dv = self.traced.calls[0].inputs.shape
        bshd = self.target.kernel.layout == "bshd"
        shape = (b, lq, hq, dv) if bshd else (b, hq, lq, dv)
        if bshd:
            turned = 1 if self.traced.calls[0].inputs.pages is not None else 3
            turn = [".transpose(1, 2)"] * turned + [""] * (3 - turned)
            tensors = [f"{text}{how}" for text, how in zip(tensors, turn, strict=True)]
        statistics = "float64" if self.example.dtype == "float64" else "float32"
        return [
            *before,
            f"result = attention({', '.join([*tensors, *options])})",
            "out, *lse = result if isinstance(result, (tuple, list)) else [result]",
            'print([f"{list(t.shape)} {t.dtype}" for t in (out, *lse)])',
            f"assert list(out.shape) == {list(shape)}",
            f"assert out.dtype == torch.{self.example.dtype}",
            "assert len(lse) <= 1",
            f"assert all(list(t.shape) == {[b, hq, lq]} for t in lse if t is not None)",
            f"assert all(t.dtype == torch.{statistics} for t in lse if t is not None)",
        ]

    def _unmodified(self) -> list[str]:
        before, call = self.calls.call(0)
        options = [f"{name}1" for name in self.calls.placed(self.traced.calls[0])]
        names = ", ".join([*(name for name, *_ in placement.tensors(self.calls.base)), *options])
        return [
            "",
            "def memory():",
            '    """The inputs, and what lies around them."""',
            f"    return [t.untyped_storage().cpu().tolist() for t in ({names})]",
            "",
            "",
            *before,
            "before = memory()",
            call,
            "after = memory()",
            "changed = [x != y for a, b in zip(before, after) for x, y in zip(a, b)]",
            'print(f"{sum(changed)} bytes changed")',
            *_assert("not any(changed)"),
        ]

    def _again(self, number: int) -> list[str]:
        before, call = self.calls.call(number)
        return [
            *before,
            f"first = {call}",
            f"for _ in range({AGAIN}):  # it may be right by chance",
            f"    again = {call}",
            "    differ = first.view(torch.int64) != again.view(torch.int64)",
            '    print(f"{int(differ.sum())} of {differ.numel()} elements differ")',
            "    " + _assert("not differ.any()")[0],
        ]

    def _compared(self, found: Comparison, case: Case) -> list[str]:
        check = self.example.check
        worst = check.worst
        assert worst is not None
        lines, expected = [], ""
        if found.other is None:
            lines += self._value("got", found.got)
            lines += self._expected(found, case)
        else:
            order = sorted([("got", found.got), ("expected", found.other)], key=lambda p: p[1].call)
            runs = dict(zip(("got", "expected"), self.law.runs, strict=False))
            for name, element in order:
                lines += [f"# {name}: the result from {runs[name]}"] if runs else []
                lines += self._value(name, element)
            blamed = "" if case.inputs.dtype in FLOAT8 else which_is_wrong(case, self.law, check)
            lines += [f"# {line}" for line in textwrap.wrap(blamed, WIDTH)]
            if found.number:
                expected = f"expected += {found.number!r}  # by so much it has to differ"
                lines.append(expected)
        if found.kind == "identical":
            return [
                *lines,
                'print(f"{got} and {expected}")',
                *_assert("repr(got) == repr(expected)", "  # bit for bit: -0.0 is not 0.0"),
            ]
        bound = repr(worst.bound)
        if worst.radius > worst.bound * NEGLIGIBLE:
            # What is expected is only known up to this.
            bound += f" + {worst.radius!r}"
        return [
            *lines,
            "error = 0.0 if got == expected else abs(got - expected)",
            f"bound = {bound}  # derived by flashcheck for this element",
            'print(f"got {got}, expected {expected}: error {error:.3g}, bound {bound:.3g}")',
            *_assert("error <= bound"),
        ]

    def _value(self, name: str, element: Element) -> list[str]:
        before, call = self.calls.call(element.call)
        lines = list(before)
        fresh = self.traced.calls[element.call].fresh_output_nan
        if fresh is not None:
            lines.append('torch.set_deterministic_debug_mode("warn")')
            what = "  # torch.empty gives NaN" if fresh else ""
            lines.append(f"torch.utils.deterministic.fill_uninitialized_memory = {fresh}{what}")
        at = ", ".join(map(str, element.index))
        return [*lines, f"{name} = {call}[{at}].item()"]

    def _expected(self, found: Comparison, case: Case) -> list[str]:
        """Statements that compute the exact result of a call in float64, or say it."""
        worst, element = self.example.check.worst, found.got
        assert worst is not None
        x = self.traced.calls[element.call].inputs
        at = case.attention(x)
        if self.example.property == "convexity":
            b, h, i = element.index[:3]
            seen = at.v[b, h, x.visible[b, h, i], element.index[3]]
            low, high = literals.number(seen.min()), literals.number(seen.max())
            return [f"expected = min(max(got, {low}), {high})  # the range of what the row sees"]
        if worst.output not in ("out", "lse"):
            return [f"expected = {literals.number(worst.expected)}  # from flashcheck's oracle"]
        exact = float((at.out if worst.output == "out" else at.lse)[element.index])
        close = exact == worst.expected or abs(exact - worst.expected) <= worst.bound / 64
        if x.dtype == "float64" or not close or x.seqlens_k is not None:
            return [f"expected = {literals.number(worst.expected)}  # from flashcheck's oracle"]
        index = ", ".join(map(str, element.index))
        value = "s.logsumexp(-1)" if worst.output == "lse" else "(p @ w)"
        return [*reference.statements(x, worst.output), f"expected = {value}[{index}].item()"]


class _Nobody:
    """A runner for a case that is asked for exact values alone."""

    def submit(self, call: Call) -> None:
        raise AssertionError("nothing is run")

    def result(self) -> Any:
        raise AssertionError("nothing is run")


def _assert(what: str, note: str = "") -> list[str]:
    return [f"assert {what}{note}"]
