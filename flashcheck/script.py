"""Script: a failure as a stand-alone Python file, to paste into a bug report.

The file needs torch and the kernel, not flashcheck. It makes the calls that the law makes and
asserts the comparison that failed, at the element where it failed most.
"""

from __future__ import annotations

import importlib.metadata
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flashcheck import literals, placement, preamble, reference
from flashcheck.call import Call
from flashcheck.case import Case, Runner
from flashcheck.examples import Example
from flashcheck.explanation.runs import which_is_wrong
from flashcheck.formats import FLOAT8
from flashcheck.grad_out import WRT, GradOut
from flashcheck.inputs import DESCALES, LENGTHS, PER_HEAD, Inputs
from flashcheck.kernel import Target
from flashcheck.law import Law, law_named
from flashcheck.loading import NEUTRAL
from flashcheck.preamble import quoted
from flashcheck.trace import Comparison, Element, Trace, trace
from flashcheck.verdict import Verdict

WIDTH = 92
NEGLIGIBLE = 1e-3
"""Share of a bound below which the uncertainty of what is expected is not worth a number."""

AGAIN = 20
"""How often a call is repeated whose result changes by chance."""

_PLACE = '''\
def place(x, strides, offset=0, fill=0.0):
    """x at these strides (in elements), in the middle of memory that holds `fill`."""
    last = sum((n - 1) * s for n, s in zip(x.shape, strides) if n)
    memory = torch.full((last + offset + 257,), fill, dtype=x.dtype, device=x.device)
    view = memory.as_strided(x.shape, strides, offset + 128)
    once = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
    view[once] = x[once]
    return view'''

_READ = '''\
def read(name, dtype):
    """A tensor of the safetensors file beside this one."""
    data = pathlib.Path(__file__).with_name("{file}").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    entry = json.loads(data[8:start])[name]
    begin, end = entry["data_offsets"]
    part = bytearray(data[start + begin : start + end])
    return torch.frombuffer(part, dtype=dtype).view(entry["shape"])'''


class ScriptError(Exception):
    """A failure that cannot be written as a script: one line with what to do."""


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
    writer = _Writer(example, target, law, traced, file)
    return Script(writer.text(case), writer.tensors)


@dataclass(slots=True)
class _Writer:
    example: Example
    target: Target
    law: Law
    traced: Trace
    file: str | None
    tensors: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def text(self, case: Callable[[Runner], Case]) -> str:
        worst, device = self.example.check.worst, self.example.device
        paged = any(call.inputs.pages is not None for call in self.traced.calls)
        used = "\n".join([*self._inputs(), "", *self._check(case(_Nobody()))])
        helpers = (
            ("bits(", literals.BASE64),
            ("read(", _READ.replace("{file}", self.file or "")),
            ("place(", _PLACE),
            ("differentiate(", preamble.differentiate(self.target, self._gradient)),
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

    # -- the inputs -----------------------------------------------------------------------

    @property
    def _base(self) -> Inputs:
        """The inputs that are written out: the example's own where a call has them."""
        own = self.example.inputs
        used = [self.traced.calls[number].inputs for number in self._used_calls()]
        same = (x for x in used if x.q is own.q and x.k is own.k and x.v is own.v)
        return next(same, used[0])

    def _used_calls(self) -> list[int]:
        """Numbers of the calls that the comparison needs; all where there is none."""
        found = self.traced.comparison
        if found is None:
            return list(range(len(self.traced.calls)))
        calls = {found.got.call} | ({found.other.call} if found.other else set())
        return sorted(calls)

    def _inputs(self) -> list[str]:
        x = self._base
        tensors = placement.tensors(x)
        names, lines = [name for name, *_ in tensors], []
        for name, dtype, values in tensors:
            lines += self._literal(name, dtype, values, placement.axis(name, x))
        if self.example.device != "cpu":
            every = ", ".join(names)
            lines.append(f"{every} = (t.to({quoted(self.example.device)}) for t in ({every}))")
        if self._moved(x, "zeros"):
            plan = placement.strides(x, self.target)
            lines += [f"{name} = {placement.place(name, *plan[name])}" for name in names]
        return lines

    def _literal(self, name: str, dtype: str, values: Any, axis: int) -> list[str]:
        lines = literals.assign(name, values, dtype, axis)
        if lines is not None:
            return lines
        if self.file is None:
            raise ScriptError(
                f"{name} has {values.size:,} elements, too many for a script on its own: give "
                "--script PATH, and they are written beside it"
            )
        self.tensors[name] = (dtype, values)
        return [f'{name} = read("{name}", torch.{dtype})']

    def _moved(self, x: Inputs, guard: str) -> bool:
        """Whether it matters where in memory the tensors of a call lie."""
        moved = x.layout != "contiguous" or self.target.kernel.layout == "bshd"
        return moved or self._surrounded(guard)

    def _surrounded(self, guard: str) -> bool:
        """Whether it matters what lies around the tensors of a call."""
        around = any(c.guard == "nan" for c in self.traced.calls)
        return around or self.example.check.symptom == "inputs modified" or guard == "nan"

    # -- the calls ------------------------------------------------------------------------

    def _call(self, number: int) -> tuple[list[str], str]:
        """Statements that make what a call needs, and the call."""
        lines, tensors, options = self._arguments(number)
        name = "run" if self.traced.calls[number].grad_out is None else "differentiate"
        return lines, f"{name}({', '.join([*tensors, *options])})"

    @property
    def _gradient(self) -> str:
        """The gradient that is asked for: that of the comparison, or of the first tensor."""
        worst = self.example.check.worst
        if worst is not None and worst.output in ("dq", "dk", "dv"):
            return worst.output
        asked = (call.grad_out.wrt for call in self.traced.calls if call.grad_out is not None)
        return f"d{next(asked, ('q',))[0]}"

    def _grad_out(self, number: int, upstream: GradOut) -> tuple[list[str], str]:
        """Statements that make a call's grad_out, and its name."""
        call, name = self.traced.calls[number], f"grad_out{number + 1}"
        lines = self._literal(name, call.inputs.dtype, upstream.values, 2)
        if self.example.device != "cpu":
            lines.append(f"{name} = {name}.to({quoted(self.example.device)})")
        if upstream.layout != "contiguous" or call.guard == "nan":
            where = placement.strides(call.inputs, self.target, upstream)["grad_out"]
            lines.append(f"{name} = {placement.place(name, *where, fill=call.guard)}")
        return lines, name

    def _arguments(self, number: int) -> tuple[list[str], list[str], list[str]]:
        """Statements that make what a call needs, its tensors and its keyword arguments."""
        call, base = self.traced.calls[number], self._base
        before = {name: values for name, _, values in placement.tensors(base)}
        lines: list[str] = []
        named: dict[str, str] = {}
        moved = self._moved(call.inputs, call.guard)
        same_place = (call.inputs.layout, call.guard) == (base.layout, "zeros")
        plan = placement.strides(call.inputs, self.target)
        for name, dtype, values in placement.tensors(call.inputs, call.guard):
            axis = placement.axis(name, call.inputs)
            own = f"{name}{number + 1}"
            how = None
            if name in before:
                how = literals.derive(own, name, values, before[name], axis)
            if how is None:
                lines += self._literal(own, dtype, values, axis)
                if self.example.device != "cpu":
                    lines.append(f"{own} = {own}.to({quoted(self.example.device)})")
                how = literals.Derived(own)
            lines += how.lines
            text = how.text
            if moved and not (text == name and same_place):
                lines.append(f"{own} = {placement.place(text, *plan[name], fill=call.guard)}")
                text = own
            elif how.sliced or (text == name and not same_place):
                # Even a contiguous part may begin in the middle of its memory.
                text += ".clone()" if same_place else ".contiguous().clone()"
            named[name] = text
        options = self._options(call)
        for name in self._placed(call):
            own = f"{name}{number + 1}"
            text = placement.place_option(call.inputs, name, options[name], plan[name], call.guard)
            lines.append(f"{own} = {text}")
            options[name] = own
        if "mask" in named:
            options["attn_mask"] = named["mask"]
        keywords = [f"{name}={text}" for name, text in options.items()]
        if call.config is not None:
            keywords.append(f"**kernel.configs[{quoted(call.config)}]")
        given = [named["q"], named["k"], named["v"]]
        if call.grad_out is not None:
            more, upstream = self._grad_out(number, call.grad_out)
            lines += more
            given.append(upstream)
            if call.grad_out.wrt != WRT:
                given.append(quoted("".join(call.grad_out.wrt)))
            if call.grad_out.passes > 1:
                keywords.append(f"passes={call.grad_out.passes}")
        return lines, given, keywords

    def _placed(self, call: Call) -> list[str]:
        """The options that are tensors and have to lie in memory as they did."""
        plan = placement.strides(call.inputs, self.target)
        known = {*self.target.options, *self.target.required}
        return [
            name
            for name, values in call.inputs.option_tensors.items()
            if name in known
            and (self._surrounded(call.guard) or not placement.contiguous(values.shape, plan[name]))
        ]

    def _options(self, call: Call) -> dict[str, str]:
        known = {*self.target.options, *self.target.required}
        given = {name: NEUTRAL[name] for name in self.target.required} | call.inputs.options()
        if "attn_mask" in call.inputs.passed:
            given["attn_mask"] = None
        return {name: self._value_of(name, value) for name, value in given.items() if name in known}

    def _value_of(self, name: str, value: object) -> str:
        if name not in (*PER_HEAD, *DESCALES, *LENGTHS) or value is None:
            return repr(value)
        where = "" if self.example.device == "cpu" else f", device={quoted(self.example.device)}"
        dtype = ", dtype=torch.int32" if name in LENGTHS else ""
        return f"torch.tensor({value!r}{dtype}{where})"

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
        for number in self._used_calls():
            before, call = self._call(number)
            lines += [*before, call]
        return [*lines, 'print("the kernel returned")']

    def _form(self) -> list[str]:
        before, tensors, options = self._arguments(0)
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
        before, call = self._call(0)
        options = [f"{name}1" for name in self._placed(self.traced.calls[0])]
        names = ", ".join([*(name for name, *_ in placement.tensors(self._base)), *options])
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
        before, call = self._call(number)
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
        before, call = self._call(element.call)
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
