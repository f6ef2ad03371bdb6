"""Names that are taken for one another: len_q and len_k, stride_kn and stride_vn, q and k."""

from __future__ import annotations

import ast
from functools import cache

from flashcheck.mutation.source import Function

_LETTERS = ("qkv", "ml", "mn", "ij", "bh", "xy", "ab")
"""Single letters that mean things of one kind."""


def alike(a: str, b: str) -> bool:
    """Whether two names differ in one letter of one word, or in one short word."""
    return 0 < _distance(a, b) <= 2


def similar(name: str, function: Function, before: int) -> str | None:
    """The name in a function that is most like `name`, and has a value by the line `before`."""
    found = [
        (_distance(name, other), other)
        for other, line in _names(function)
        if line < before and alike(name, other)
    ]
    return min(found)[1] if found else None


def _distance(a: str, b: str) -> int:
    """1: one letter of one word differs; 2: one short word, or two of query, key and value; 3."""
    left, right = a.split("_"), b.split("_")
    if a == b or len(left) != len(right):
        return 0 if a == b else 3
    differ = [(x, y) for x, y in zip(left, right, strict=True) if x != y]
    if len(differ) != 1:
        return 3
    ((x, y),) = differ
    if len(a) == len(b) == 1:
        return 1 if any({a, b} <= set(group) for group in _LETTERS) else 3
    letters = sum(p != q for p, q in zip(x, y, strict=False)) + abs(len(x) - len(y))
    if len(x) == len(y) and letters == 1:
        return 1
    words = {"query", "key", "value"}
    if {x.lower(), y.lower()} <= words or (len(left) > 1 and max(len(x), len(y)) <= 3):
        return 2
    return 3


@cache
def _names(function: Function) -> tuple[tuple[str, int], ...]:
    """(name, line of its first value) of parameters and of what is assigned."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    first = {a.arg: 0 for a in every}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            first[node.id] = min(first.get(node.id, node.lineno), node.lineno)
    return tuple(sorted(first.items()))
