"""Source: a file's text, its syntax tree, and where in the text each node is.

Edits are made in the text, not by writing the tree out again: every other line stays as its
author wrote it, with its comments and its number.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class Edit:
    """The bytes [start, end) of a source replaced by `new`."""

    start: int
    end: int
    new: str


class Source:
    """A Python file. Raises SyntaxError or UnicodeDecodeError where it is none."""

    def __init__(self, text: bytes, file: str = "<source>") -> None:
        self.file = file
        self.text = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
        self.text.decode("utf-8")
        self.tree = ast.parse(self.text, file)
        self._starts = [0]
        for line in self.text.splitlines(True):
            self._starts.append(self._starts[-1] + len(line))
        self.parents: dict[ast.AST, ast.AST] = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    def start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined, no-any-return]

    def end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined, no-any-return]

    def of(self, node: ast.AST) -> str:
        """The text of a node, without parentheses around it."""
        return self.text[self.start(node) : self.end(node)].decode()

    def operand(self, node: ast.expr) -> str:
        """The text of a node, in parentheses where it could fall apart in another place."""
        whole = (ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Call, ast.List)
        return self.of(node) if isinstance(node, whole) else f"({self.of(node)})"

    def replace(self, node: ast.AST, new: str) -> Edit:
        return Edit(self.start(node), self.end(node), new)

    def token(self, low: int, high: int, old: str, new: str) -> Edit | None:
        """The first `old` between two places, comments left out, replaced."""
        at = low
        while at < high:
            if self.text[at : at + 1] == b"#":
                at = self.text.index(b"\n", at)
            elif self.text.startswith(old.encode(), at):
                return Edit(at, at + len(old), new)
            at += 1
        return None

    def apply(self, edit: Edit) -> bytes:
        return self.text[: edit.start] + edit.new.encode() + self.text[edit.end :]

    def line_at(self, place: int) -> int:
        """The number of the line that holds a byte."""
        return self.text.count(b"\n", 0, place) + 1

    @functools.cached_property
    def lines(self) -> list[str]:
        return self.text.decode().split("\n")

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement that a node belongs to."""
        here: ast.AST | None = node
        while here is not None and not isinstance(here, ast.stmt):
            here = self.parents.get(here)
        return here

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function in whose body a node is."""
        child, here = node, self.parents.get(node)
        while here is not None:
            if isinstance(here, Function):
                body = here.body if isinstance(here.body, list) else [here.body]
                if child in body:
                    return here
            child, here = here, self.parents.get(here)
        return None

    def span(self, statement: ast.stmt) -> range:
        """The lines of a statement; of a compound one, those of its head."""
        body = getattr(statement, "body", None)
        last = statement.end_lineno or statement.lineno
        if isinstance(body, list) and body:
            last = max(statement.lineno, body[0].lineno - 1)
        return range(statement.lineno, last + 1)
