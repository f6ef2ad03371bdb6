"""Statements: the calls of a law as statements of Python, for a script.

Tensors are written out, or derived from those of another call, and lie in memory as they did.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flashcheck import literals, placement
from flashcheck.call import Call
from flashcheck.examples import Example
from flashcheck.grad_out import WRT, GradOut
from flashcheck.inputs import DESCALES, LENGTHS, PER_HEAD, Inputs
from flashcheck.kernel import Target
from flashcheck.loading import NEUTRAL
from flashcheck.preamble import quoted
from flashcheck.trace import Trace

PLACE = '''\
def place(x, strides, offset=0, fill=0.0):
    """x at these strides (in elements), in the middle of memory that holds `fill`."""
    last = sum((n - 1) * s for n, s in zip(x.shape, strides) if n)
    memory = torch.full((last + offset + 257,), fill, dtype=x.dtype, device=x.device)
    view = memory.as_strided(x.shape, strides, offset + 128)
    once = tuple(slice(0, 1) if s == 0 else slice(None) for s in strides)
    view[once] = x[once]
    return view'''

READ = '''\
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


@dataclass(slots=True)
class Calls:
    """The calls that a law made, as statements.

    file: the name of the safetensors file for large tensors; None where there can be none.
    tensors: {name: (dtype, values)} of those, as far as statements were asked for.
    Raises ScriptError.
    """

    example: Example
    target: Target
    traced: Trace
    file: str | None
    tensors: dict[str, tuple[str, Any]] = field(default_factory=dict)

    # -- the inputs -----------------------------------------------------------------------

    @property
    def base(self) -> Inputs:
        """The inputs that are written out: the example's own where a call has them."""
        own = self.example.inputs
        used = [self.traced.calls[number].inputs for number in self.used()]
        same = (x for x in used if x.q is own.q and x.k is own.k and x.v is own.v)
        return next(same, used[0])

    def used(self) -> list[int]:
        """Numbers of the calls that the comparison needs; all where there is none."""
        found = self.traced.comparison
        if found is None:
            return list(range(len(self.traced.calls)))
        calls = {found.got.call} | ({found.other.call} if found.other else set())
        return sorted(calls)

    def inputs(self) -> list[str]:
        """Statements that make q, k, v and the mask of `base`, by these names."""
        x = self.base
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

    def call(self, number: int) -> tuple[list[str], str]:
        """Statements that make what a call needs, and the call."""
        lines, tensors, options = self.arguments(number)
        name = "run" if self.traced.calls[number].grad_out is None else "differentiate"
        return lines, f"{name}({', '.join([*tensors, *options])})"

    @property
    def gradient(self) -> str:
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

    def arguments(self, number: int) -> tuple[list[str], list[str], list[str]]:
        """Statements that make what a call needs, its tensors and its keyword arguments."""
        call, base = self.traced.calls[number], self.base
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
        for name in self.placed(call):
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

    def placed(self, call: Call) -> list[str]:
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
