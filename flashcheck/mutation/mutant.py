"""Mutant: a source with one edit, and all mutants of the lines that a kernel runs."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass

from flashcheck.mutation.operators import OPERATORS
from flashcheck.mutation.source import Edit, Source


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit at `line`: the line `before` and `after` it, and in words what the edit does."""

    line: int
    operator: str
    before: str
    after: str
    text: bytes


def mutants(source: Source, lines: Container[int]) -> list[Mutant]:
    """Every mutant of the statements that have one of `lines`, from the top of the file down.

    Two edits that make the same program count once. What is not arithmetic is left alone:
    signatures, annotations, docstrings, messages, assertions and errors.
    """
    found: list[Mutant] = []
    seen = {ast.dump(source.tree)}
    nodes = [n for n in ast.walk(source.tree) if hasattr(n, "lineno") and _run(source, n, lines)]
    for operator in OPERATORS:
        for node in nodes:
            for edit in operator(source, node):
                if edit is None:
                    continue
                text = source.apply(edit)
                try:
                    tree = ast.parse(text)
                except (SyntaxError, ValueError):
                    continue
                if (dump := ast.dump(tree)) not in seen:
                    seen.add(dump)
                    found.append(_mutant(source, edit, text, operator.__name__))
    return sorted(found, key=lambda m: m.line)


def _run(source: Source, node: ast.AST, lines: Container[int]) -> bool:
    statement = source.statement(node)
    if statement is None or source.function(node) is None:
        return False
    if isinstance(statement, ast.Assert | ast.Raise | ast.FunctionDef | ast.ClassDef):
        return False
    for child, parent in _upwards(source, node, statement):
        if isinstance(parent, ast.JoinedStr):  # its parts have no places before Python 3.12
            return False
        if isinstance(parent, ast.AnnAssign) and child is parent.annotation:
            return False
    return any(line in lines for line in source.span(statement))


def _upwards(
    source: Source, node: ast.AST, end: ast.stmt
) -> Iterator[tuple[ast.AST, ast.AST]]:  # fmt: skip
    while node is not end:
        parent = source.parents[node]
        yield node, parent
        node = parent


def _mutant(source: Source, edit: Edit, text: bytes, operator: str) -> Mutant:
    first = source.line_at(edit.start)
    last = source.line_at(max(edit.start, edit.end - 1))
    count = (
        last - first + 1 + edit.new.count("\n") - source.text[edit.start : edit.end].count(b"\n")
    )
    after = text.decode().split("\n")[first - 1 : first - 1 + count]
    words = operator.replace("_", " ")
    return Mutant(first, words, _joined(source.lines[first - 1 : last]), _joined(after), text)


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)
