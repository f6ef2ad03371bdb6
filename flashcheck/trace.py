"""Trace: which calls of the kernel a law makes, and which of their elements it compares.

A law is run on a stand-in for the kernel, whose every element is a number of its own. Where
such a number turns up in a comparison, it says which element of which call is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from flashcheck.call import Call, Reply
from flashcheck.case import Case, Runner
from flashcheck.formats import Array, Bools
from flashcheck.judge import Judge, called
from flashcheck.law import Law
from flashcheck.verdict import Check

Kind = Literal["within", "identical", "finite"]

_FIRST = 2.0**40
"""The number of the first element: no exact result is as large and as round."""


@dataclass(frozen=True, slots=True)
class Element:
    """One element of what a call gives. `time` counts repetitions of a call made many times."""

    call: int
    time: int
    index: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """got is compared with `other` plus `number`, or with `number` alone where other is None."""

    kind: Kind
    got: Element
    other: Element | None
    number: float


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls that a law makes, in order; comparison is None where none is behind the check."""

    calls: tuple[Call, ...]
    comparison: Comparison | None


def trace(law: Law, case: Callable[[Runner], Case], check: Check) -> Trace:
    """Follow `law` on a case to the comparison that gave the worst element of `check`."""
    numbered, zeros = _Stand(numbered=True), _Stand(numbered=False)
    first, second = _Witness(law.name), _Witness(law.name)
    law.judge(case(numbered), first)
    law.judge(case(zeros), second)
    which = _which(check, first.seen)
    found = None
    if which is not None and check.worst is not None:
        index = check.worst.index
        got, expected = first.seen[which].got, first.seen[which].expected
        number = float(second.seen[which].expected[index])
        # The number of an element is gone from the second run, whatever was added to it not.
        source = float(expected[index]) - number if np.isfinite(number) else float(expected[index])
        element = numbered.element(float(got[index]))
        # Some laws compare sums of what the kernel gave.
        if element is not None:
            other = numbered.element(source)
            # Clipped to a wide range of values, an element is compared with itself.
            other = None if other == element else other
            found = Comparison(first.seen[which].kind, element, other, number)
    return Trace(tuple(numbered.calls), found)


def _which(check: Check, seen: list[_Seen]) -> int | None:
    """The comparison that the check's worst element comes from."""
    if check.worst is None:
        return None
    mine = [i for i, s in enumerate(seen) if s.output == check.worst.output]
    exact = [i for i in mine if seen[i].symptom and seen[i].symptom == check.symptom]
    # A failure that is no comparison has a symptom of its own.
    numeric = any(check.symptom == f"{called(s.output)} {w}" for s in seen for w in _NUMERIC)
    close = [i for i in mine if not seen[i].symptom] if numeric else []
    return next(iter([*exact, *close]), None)


_NUMERIC = ("value", "not finite")


@dataclass(frozen=True, slots=True)
class _Seen:
    kind: Kind
    output: str
    got: Array
    expected: Array
    symptom: str = ""


class _Witness(Judge):
    """A judge that remembers what it was given."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.seen: list[_Seen] = []

    def within(self, output: str, got: Array, expected: Array, bound: Array, **how: Any) -> Array:
        self.seen.append(_Seen("within", output, got, np.broadcast_to(expected, got.shape)))
        return super().within(output, got, expected, bound, **how)

    def identical(self, output: str, first: Array, second: Array, symptom: str, what: str) -> None:
        self.seen.append(_Seen("identical", output, second, first, symptom))
        super().identical(output, first, second, symptom, what)

    def finite(self, output: str, got: Array, judged: Bools) -> None:
        self.seen.append(_Seen("finite", output, got, np.zeros_like(got)))
        super().finite(output, got, judged)


class _Stand:
    """Stands for the kernel: its elements are numbered through all calls, or all are 0."""

    def __init__(self, numbered: bool) -> None:
        self.numbered = numbered
        self.calls: list[Call] = []
        self._given: list[tuple[float, tuple[int, ...], int, int]] = []
        self._next = _FIRST
        self._reply = Reply("ok")

    def submit(self, call: Call) -> None:
        self.calls.append(call)
        b, hq, _, lq, _, _, dv = call.inputs.shape
        self._reply = Reply("ok")
        for time in range(call.times):
            self._reply.outs.append(self._array((b, hq, lq, dv), time))
            self._reply.lses.append(self._array((b, hq, lq), time))
        for name in () if call.grad_out is None else call.grad_out.wrt:
            self._reply.gradients[f"d{name}"] = self._array(getattr(call.inputs, name).shape, 0)

    def result(self) -> Reply:
        return self._reply

    def element(self, number: float) -> Element | None:
        """The element with this number."""
        for first, shape, call, time in self._given:
            at = round(number - first) if np.isfinite(number) else -1
            if 0 <= at < np.prod(shape):
                index = np.unravel_index(at, shape)
                return Element(call, time, tuple(int(i) for i in index))
        return None

    def _array(self, shape: tuple[int, ...], time: int) -> Array:
        size = int(np.prod(shape))
        if not self.numbered:
            return np.zeros(shape)
        first, self._next = self._next, self._next + size
        self._given.append((first, shape, len(self.calls) - 1, time))
        return first + np.arange(size, dtype=np.float64).reshape(shape)
