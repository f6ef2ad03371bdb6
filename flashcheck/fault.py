"""Fault: a realistic bug, injected by editing a clean kernel's own source as it is loaded.

A fault is a module of flashcheck.kernels.faults with `edits`: for each kernel that it can be
injected in, pairs (statement, replacement). A statement is matched by its syntax tree, so
that layout and comments do not matter, and must occur exactly once: a fault that no longer
fits its kernel fails loudly.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

KERNELS = "flashcheck.kernels"


class FaultError(Exception):
    """A fault that does not exist, or does not fit the kernel: one line."""


def load(kernel: str, fault: str) -> ModuleType:
    """The module of the registered kernel `kernel` with `fault` injected. Raises FaultError."""
    try:
        page = importlib.import_module(f"{KERNELS}.faults.{fault}")
    except ModuleNotFoundError:
        raise FaultError(f"there is no fault {fault!r} in kernels/faults") from None
    if kernel not in page.edits:
        known = ", ".join(page.edits)
        raise FaultError(f"the fault {fault!r} is not injected in {kernel}; it is in {known}")
    spec = importlib.util.find_spec(f"{KERNELS}.{kernel}")
    if spec is None or spec.origin is None:
        raise FaultError(f"no kernel is called {kernel!r}")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"), spec.origin)
    text = ast.unparse(inject(tree, page.edits[kernel], fault))
    # Triton and inspect read a function's source again: they must find the edited one.
    file = f"{spec.origin}+{fault}"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = ModuleType(f"{KERNELS}.{kernel}_with_{fault}")
    module.__package__ = KERNELS
    module.__file__ = file
    sys.modules[module.__name__] = module
    exec(compile(text, file, "exec"), vars(module))
    return module


def inject(tree: ast.Module, edits: Sequence[tuple[str, str]], fault: str) -> ast.Module:
    """The tree with each statement replaced. Raises FaultError unless it occurs once."""
    for old, new in edits:
        editor = _Editor(old, new)
        tree = ast.fix_missing_locations(editor.visit(tree))
        if editor.found != 1:
            raise FaultError(
                f"the fault {fault!r} no longer fits: {old!r} occurs {editor.found} times"
            )
    return tree


class _Editor(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old = ast.dump(ast.parse(old).body[0])
        self.new = new
        self.found = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, ast.stmt) and ast.dump(node) == self.old:
            self.found += 1
            replacement = ast.parse(self.new).body[0]
            return ast.copy_location(replacement, node)
        return super().generic_visit(node)
