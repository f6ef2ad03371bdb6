"""Defect: a mistake of flashcheck's own, told beside the failure that it must not hide."""

from __future__ import annotations

import traceback
from pathlib import Path

PLEASE = "the failure stands; please report this line with the failing problem"


def told(what: str, error: Exception) -> str:
    """One line: what could not be done, the exception, where it was raised and what to do."""
    message = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    at = f", {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    name = type(error).__name__
    return (
        f"flashcheck could not {what}, by a defect of its own "
        f"({name}{': ' if message else ''}{message}{at}): {PLEASE}"
    )
