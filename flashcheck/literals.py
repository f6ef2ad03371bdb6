"""Literals: tensors as the torch statements that make them, exact to the last bit.

A tensor is written as the shortest of: one number, a number and what differs from it at a few
positions or elements, a number for each position, a list, its bits in base64. It is written
from its values, so that captured tensors and what a law makes of a recipe read as well as a
recipe's own.
"""

from __future__ import annotations

import base64
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashcheck.bits import to_bits

LISTED = 32
"""Elements of the longest list."""

INLINE = 16_384
"""Bytes of the largest tensor that is written in base64."""

FEW = 4
"""Statements that change parts of a tensor, at most."""

WIDTH = 92

BASE64 = '''\
def bits(text, dtype, shape):
    """A tensor from its bits in base64."""
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=dtype).view(shape)'''

Values = NDArray[Any]


def assign(name: str, values: Values, dtype: str, axis: int) -> list[str] | None:
    """Statements that make `name` hold `values`, or None where it has more than INLINE bytes.

    `axis` is that of the keys or queries. The statements need torch and math, and BASE64 where
    one calls `bits`.
    """
    shape = tuple(values.shape)
    kind = f"dtype=torch.{dtype}"
    if not values.size:
        return [f"{name} = torch.zeros({shape}, {kind})"]
    levels = _levels(values, axis)
    edits = None if levels is None else _edits(name, values, _common(levels), axis)
    if edits is None:
        edits = _single(name, values, _common(values))
    if edits is not None:
        common = _common(values if levels is None else levels)
        return [f"{name} = torch.full({shape}, {number(common)}, {kind})", *edits]
    if levels is not None and len(levels) <= LISTED:
        behind = ", 1" * (values.ndim - 1 - axis)
        view = f".view(-1{behind})" if behind else ""
        end = f"], {kind}){view}.repeat({_repeats(shape, axis)})"
        return _listed(f"{name} = torch.tensor([", levels, end)
    if values.size <= LISTED:
        return _listed(f"{name} = torch.tensor([", values.ravel(), f"], {kind}).view({shape})")
    data = to_bits(values, dtype)
    if data.nbytes > INLINE:
        return None
    text = base64.b64encode(data.astype(data.dtype.newbyteorder("<")).tobytes()).decode()
    lines = textwrap.wrap(text, WIDTH)
    return [f'{name} = bits("""', *lines, f'""", torch.{dtype}, {shape})']


def derive(name: str, old: str, values: Values, before: Values, axis: int) -> Derived | None:
    """How `values` are made from `before`, which the variable `old` holds; None: not simply."""
    shape, other = values.shape, before.shape
    if _same(values, before):
        return Derived(old)
    if len(shape) == len(other):
        for cut in (a for a in range(len(shape)) if shape[a] < other[a]):
            for start in range(other[cut] - shape[cut] + 1):
                part = slice(start, start + shape[cut])
                if _same(values, before[(slice(None),) * cut + (part,)]):
                    at = _index(cut, f"{start}:{start + shape[cut]}")
                    return Derived(f"{old}[{at}]", sliced=True)
        for grown in (a for a in range(len(shape)) if shape[a] > other[a] > 0):
            times = shape[grown] // other[grown]
            if grown == axis and _same(values, np.concatenate([before] * times, grown)):
                return Derived(f"torch.cat([{', '.join([old] * times)}], {grown})")
            if _same(values, np.repeat(before, times, grown)):
                return Derived(f"{old}.repeat_interleave({times}, {grown})")
    if shape != other:
        return None
    turned = np.flip(before, axis)
    for turns in range(shape[axis]):
        if _same(values, np.roll(turned, turns, axis)):
            moved = f".roll({turns}, {axis})" if turns else ""
            return Derived(f"{old}.flip({axis}){moved}")
    edits = _edits(name, values, before, axis)
    return None if edits is None else Derived(name, (f"{name} = {old}.clone()", *edits))


class Derived:
    """An expression for a tensor, and the statements that it needs first."""

    def __init__(self, text: str, lines: Sequence[str] = (), sliced: bool = False) -> None:
        self.text = text
        self.lines = tuple(lines)
        self.sliced = sliced


def number(value: object) -> str:
    """A float or a truth value as Python source, exactly."""
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    x = float(value)  # type: ignore[arg-type]
    if math.isnan(x):
        return "math.nan"
    return repr(x) if math.isfinite(x) else f"{'-' if x < 0 else ''}math.inf"


def _same(a: Values, b: Values) -> bool:
    return a.shape == b.shape and bool((_keys(a) == _keys(b)).all())


def _keys(values: Values) -> Values:
    """What tells elements apart: 0.0 and -0.0 are two."""
    if values.dtype == bool:
        return values
    return np.ascontiguousarray(values, np.float64).view(np.uint64)


def _levels(values: Values, axis: int) -> Values | None:
    """The value at each position along `axis`, where nothing else matters."""
    rows = np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    first = np.ascontiguousarray(rows[:, 0])
    return first if (_keys(rows) == _keys(first)[:, None]).all() else None


def _common(values: Values) -> Any:
    """The most common element; of equals, the first."""
    flat = np.ascontiguousarray(values).ravel()
    _, first, counts = np.unique(_keys(flat), return_index=True, return_counts=True)
    return flat[min(first[counts == counts.max()])]


def _edits(name: str, values: Values, before: Any, axis: int) -> list[str] | None:
    """Statements that change whole positions of `before` into those of `values`, if few do."""
    old = np.broadcast_to(np.asarray(before, values.dtype), values.shape)
    n = values.shape[axis]
    differs = np.moveaxis(_keys(values) != _keys(old), axis, 0).reshape(n, -1).any(1)
    where = np.flatnonzero(differs)
    levels = _levels(np.take(values, where, axis), axis) if where.size else values[:0].ravel()
    if levels is None:
        return None
    lines = []
    for key in dict.fromkeys(_keys(levels).tolist()):
        mine = where[_keys(levels) == key]
        value = number(levels[_keys(levels) == key][0])
        lines += [f"{name}[{_index(axis, text)}] = {value}" for text in _slices(mine, n)]
        if len(lines) > FEW:
            return None
    return lines


def _single(name: str, values: Values, common: Any) -> list[str] | None:
    """Statements that set the few elements that are not `common`."""
    places = np.argwhere(_keys(values) != _keys(np.asarray([common], values.dtype)))
    if len(places) > FEW:
        return None
    return [
        f"{name}[{', '.join(map(str, place))}] = {number(values[tuple(place)])}"
        for place in places.tolist()
    ]


def _slices(positions: NDArray[np.intp], n: int) -> list[str]:
    """Positions, in order, as indices and slices of a dimension of length n."""
    first = int(positions[0])
    steps = np.unique(np.diff(positions))
    if len(positions) > 2 and len(steps) == 1 and steps[0] > 1:
        step = int(steps[0])
        stop = "" if positions[-1] + step >= n else str(int(positions[-1]) + 1)
        return [f"{first}:{stop}:{step}"]
    runs = np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)
    texts = []
    for run in runs:
        begin, end = int(run[0]), int(run[-1]) + 1
        texts.append(str(begin) if end == begin + 1 else f"{begin}:{'' if end == n else end}")
    return texts


def _index(axis: int, text: str) -> str:
    return ", ".join([":"] * axis + [text])


def _repeats(shape: Sequence[int], axis: int) -> str:
    return ", ".join("1" if a == axis else str(n) for a, n in enumerate(shape))


def _listed(start: str, values: Values, end: str) -> list[str]:
    numbers = ", ".join(map(number, values))
    if len(start) + len(numbers) + len(end) <= WIDTH:
        return [start + numbers + end]
    inside = textwrap.wrap(numbers, WIDTH, initial_indent="    ", subsequent_indent="    ")
    return [start, *inside, end]
