"""Override: another text for one source file, wherever this process imports it.

The module keeps its name, its package and its path, so that relative imports, imports of files
beside it and what Triton or inspect read of its functions all find what they would have found.
"""

from __future__ import annotations

import linecache
import os
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import Any


def override(file: str, text: bytes) -> None:
    """From now on whoever imports `file` gets `text`; what was imported before stays."""
    real = os.path.realpath(file)
    original: Any = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if os.path.realpath(path) != real:
            found: CodeType | None = original(self, fullname)
            return found
        # Not through get_data: a .pyc of the original would be taken, or one of this written.
        lines = text.decode().splitlines(True)
        # Without a time of modification an entry is never checked against the disk.
        linecache.cache[path] = (len(text), None, lines, path)
        compiled: CodeType = self.source_to_code(text, path)
        return compiled

    SourceFileLoader.get_code = get_code  # type: ignore[method-assign, assignment]
