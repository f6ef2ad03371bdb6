"""Reach: the lines of a file that a kernel's run executes.

Python lines are traced. A function that is compiled (@triton.jit, numba's) leaves no trace, so
all lines of one that an executed line names, directly or through others of them, count.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

from flashcheck.call import Call
from flashcheck.mutation.source import Source
from flashcheck.problem import Problem
from flashcheck.worker import InProcess

_COMPILERS = frozenset({"jit", "njit"})


def traced(
    spec: str, device: str | None, file: str, problems: Sequence[tuple[Problem, str | None]]
) -> frozenset[int]:
    """Lines of `file` that run, for (problem, configuration) each. Raises TargetError.

    To be called in a process of its own, which the kernel may end.
    """
    real = os.path.realpath(file)
    lines: set[int] = set()
    ours: dict[str, bool] = {}

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines.add(frame.f_lineno)
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in ours:
            ours[name] = os.path.realpath(name) == real
        return local if ours[name] else None

    with InProcess(spec, device) as runner:
        target = runner.start()
        for problem, config in problems:
            x = problem.inputs()
            if target.kernel.causal_alignment == "bottom_right":
                x = x.with_(bottom_right=True)
            before = sys.gettrace()
            sys.settrace(trace)
            try:
                runner.call(Call(x, config))
            finally:
                sys.settrace(before)
    return frozenset(lines)


def compiled(source: Source, run: frozenset[int]) -> frozenset[int]:
    """Lines in compiled functions that the lines `run` reach.

    All of the compiled functions where none is reached: another file launches them.
    """
    functions = {
        node.name: node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef) and any(map(_compiles, node.decorator_list))
    }
    reached: set[str] = set()
    names = _names(source.tree, run)
    while found := names & (functions.keys() - reached):
        reached |= found
        names = {n for name in found for n in _names(functions[name], None)}
    lines: set[int] = set()
    for name in reached or functions:
        body = functions[name].body
        lines |= set(range(body[0].lineno, (functions[name].end_lineno or 0) + 1))
    return frozenset(lines)


def _compiles(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    last = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return last in _COMPILERS


def _names(tree: ast.AST, lines: frozenset[int] | None) -> set[str]:
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and (lines is None or node.lineno in lines)
    }


def missed(source: Source, run: frozenset[int]) -> tuple[int, ...]:
    """Lines of functions that run in part, with code that no problem ran."""
    lines: set[int] = set()

    def visit(code: CodeType) -> None:
        own = {line for _, _, line in code.co_lines() if line and line > code.co_firstlineno}
        if code.co_flags & 0x1 and own & run:  # CO_OPTIMIZED: a function, not a module or class
            lines.update(own - run)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                visit(constant)

    visit(compile(source.text, source.file, "exec"))
    raising = {
        line
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Raise | ast.Assert)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return tuple(sorted(lines - raising))
