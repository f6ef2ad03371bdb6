"""Records: strict, canonical JSON with a digest, and files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """As strict JSON: what is not finite becomes "inf", "-inf" or "nan"."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, str):
        # A kernel may print anything, lone surrogates too, which no file can hold.
        return value.encode(errors="replace").decode()
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    return value


def sha256(record: dict[str, Any]) -> bytes:
    """Of the canonical JSON: sorted, without blanks, shortest floats that round-trip."""
    text = json.dumps(plain(record), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).digest()


def floats(value: Any) -> Any:
    """The reverse of `plain` for numbers; where no other string is one of these."""
    if isinstance(value, dict):
        return {k: floats(v) for k, v in value.items()}
    if isinstance(value, list):
        return [floats(v) for v in value]
    return float(value) if value in ("inf", "-inf", "nan") else value


def write_whole(path: Path, data: bytes) -> None:
    """All of the file or nothing, whatever happens on the way."""
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
