"""Fault: a realistic bug, injected by editing a clean kernel's own source as it is loaded.

A fault is a module of flashcheck.kernels.faults: its docstring is the page about it, `edits`
are pairs (statement, replacement) for each kernel that it can be injected in. A statement is
matched by its syntax tree, so that layout and comments do not matter, and must occur exactly
once: a fault that no longer fits its kernel fails loudly. Of a compound statement the head can
be given alone, with `...` for its body, which is kept: `for i in range(n): ...`. A replacement
may be several statements.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import linecache
import pkgutil
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

KERNELS = "flashcheck.kernels"

KINDS: dict[str, str] = {
    "A": "masked rows, infinities and NaN",
    "B": "state of the online softmax",
    "C": "precision",
    "D": "log-sum-exp",
    "E": "causal alignment",
    "F": "sliding window",
    "G": "scale, bias, softcap, ALiBi, sinks",
    "H": "tails, padding and memory that is not written",
    "I": "map of heads",
    "J": "packed sequences",
    "K": "paged keys and values",
    "L": "splits and their merge",
    "M": "overflow of an index",
    "N": "strides and layouts",
    "O": "races, and dependence on the launch",
    "P": "backward",
    "Q": "quantization",
    "R": "dependence on batch and shape",
}
"""Kinds of bugs that attention kernels have shipped with."""


class FaultError(Exception):
    """A fault that does not exist, or does not fit the kernel: one line."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault and the page about it.

    kind: a key of KINDS; title: one sentence; wrong, seen, survives: as the page has them;
    killed_by: names of properties; edits: by kernel.
    """

    name: str
    kind: str
    title: str
    wrong: str
    seen: str
    killed_by: tuple[str, ...]
    survives: str
    edits: Mapping[str, Sequence[tuple[str, str]]]


_SECTIONS = ("Kind", "What is wrong", "Where seen", "Killed by", "Survives")


def names() -> tuple[str, ...]:
    """Every fault's name."""
    package = importlib.import_module(f"{KERNELS}.faults")
    return tuple(sorted(info.name for info in pkgutil.iter_modules(package.__path__)))


def read(name: str) -> Fault:
    """The fault `name`. Raises FaultError where there is none, or its page lacks a section."""
    try:
        module = importlib.import_module(f"{KERNELS}.faults.{name}")
    except ModuleNotFoundError:
        raise FaultError(f"there is no fault {name!r} in kernels/faults") from None
    title, _, rest = (module.__doc__ or "").strip().partition("\n\n")
    # A section begins at the margin with its name and three spaces or more.
    parts = re.split(rf"^({'|'.join(_SECTIONS)})  +", rest, flags=re.MULTILINE)
    page = {key: " ".join(text.split()) for key, text in zip(parts[1::2], parts[2::2], strict=True)}
    if missing := [section for section in _SECTIONS if not page.get(section)]:
        raise FaultError(f"the page of the fault {name!r} has no {', '.join(missing)}")
    if page["Kind"] not in KINDS:
        raise FaultError(f"the fault {name!r} is of no kind: {page['Kind']}")
    return Fault(
        name, page["Kind"], " ".join(title.split()), page["What is wrong"], page["Where seen"],
        tuple(page["Killed by"].split(", ")), page["Survives"], module.edits,
    )  # fmt: skip


def load(
    kernel: str, name: str, form: str = "", rewrite: Callable[[str], str | None] = str
) -> ModuleType:
    """The module of the registered kernel `kernel` with a fault injected.

    `rewrite` turns its source into that of another `form`, or None where that does not fit.
    Raises FaultError.
    """
    edits = read(name).edits
    if kernel not in edits:
        known = ", ".join(edits)
        raise FaultError(f"the fault {name!r} is not injected in {kernel}; it is in {known}")
    spec = importlib.util.find_spec(f"{KERNELS}.{kernel}")
    if spec is None or spec.origin is None:
        raise FaultError(f"no kernel is called {kernel!r}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"), spec.origin)
    text = rewrite(ast.unparse(inject(tree, edits[kernel], name)))
    if text is None:
        raise FaultError(f"the fault {name!r} in {kernel} has no form {form!r}")
    # Triton and inspect read a function's source again: they must find the edited one.
    label = f"{name}_in_{form}" if form else name
    file = f"{spec.origin}+{label}"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = ModuleType(f"{KERNELS}.{kernel}_with_{label}")
    module.__package__ = KERNELS
    module.__file__ = file
    sys.modules[module.__name__] = module
    exec(compile(text, file, "exec"), vars(module))
    return module


def inject(tree: ast.Module, edits: Sequence[tuple[str, str]], fault: str) -> ast.Module:
    """The tree with each statement replaced. Raises FaultError unless it occurs once."""
    for old, new in edits:
        editor = _Editor(old, new)
        tree = editor.visit(tree)
        if editor.found != 1:
            raise FaultError(
                f"the fault {fault!r} no longer fits: {old!r} occurs {editor.found} times"
            )
    return ast.fix_missing_locations(tree)


class _Editor(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        (statement,) = ast.parse(old).body
        self.head_only = _is_head(statement)
        self.kind = type(statement)
        self.old = ast.dump(statement)
        self.new = new
        self.found = 0

    def generic_visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:  # type: ignore[override]
        if isinstance(node, ast.expr):  # holds no statement
            return node
        if isinstance(node, ast.stmt) and self._matches(node):
            self.found += 1
            replacement = ast.parse(self.new).body
            for statement in replacement:
                if _is_head(statement):
                    statement.body = node.body  # type: ignore[attr-defined]
                ast.copy_location(statement, node)
            return replacement
        return super().generic_visit(node)

    def _matches(self, node: ast.stmt) -> bool:
        if type(node) is not self.kind:
            return False
        if not self.head_only:
            return ast.dump(node) == self.old
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            return False
        node.body = [ast.Expr(ast.Constant(...))]  # type: ignore[attr-defined]
        try:
            return ast.dump(node) == self.old
        finally:
            node.body = body  # type: ignore[attr-defined]


def _is_head(statement: ast.stmt) -> bool:
    """Whether it is a compound statement whose body is `...`."""
    match getattr(statement, "body", None):
        case [ast.Expr(ast.Constant(value))]:
            return value is ...
    return False
