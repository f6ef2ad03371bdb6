"""The JSON of a run: everything in RunSummary, with a schema (schema.json beside this file).

JSON has no infinity: an infinite number is the string "inf" or "-inf", and one that is not
known (or NaN) is null.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import types
import typing
from functools import cache
from pathlib import Path
from typing import Any

from flashcheck.reporting.summary import RunSummary

FORMAT_VERSION = 1


class ReportError(ValueError):
    """A run.json that cannot be read: says why."""


def to_dict(summary: RunSummary) -> dict[str, Any]:
    return {"format_version": FORMAT_VERSION, **_encode(summary)}


def write(summary: RunSummary, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(to_dict(summary), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> RunSummary:
    """The reverse of `write`. Raises ReportError for another format or version."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"{path} is not a JSON report: {error}") from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise ReportError(
            f"{path} has format_version {version!r}; this flashcheck reads {FORMAT_VERSION}"
        )
    try:
        return typing.cast(RunSummary, _decode(RunSummary, data))
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{path} is not a report of this version: {error}") from error


@cache
def schema() -> dict[str, Any]:
    text = Path(__file__).with_name("schema.json").read_text(encoding="utf-8")
    return typing.cast(dict[str, Any], json.loads(text))


def validate(data: object) -> None:
    """Check against the schema; needs jsonschema, which flashcheck itself does not."""
    jsonschema = importlib.import_module("jsonschema")
    jsonschema.validate(data, schema(), cls=jsonschema.Draft202012Validator)


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(item) for item in value]
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return float(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, (str, bool, int)):
        return value
    # NumPy and torch scalars, and whatever an environment may hold.
    return _encode(value.item()) if hasattr(value, "item") else str(value)


def _decode(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _decode(next(a for a in args if a is not type(None)), value)
    if dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        known = [f.name for f in dataclasses.fields(hint) if f.name in value]
        build = typing.cast(Any, hint)
        return build(**{name: _decode(hints[name], value[name]) for name in known})
    if origin is tuple:
        return tuple(_decode(args[0], item) for item in value)
    if origin is dict:
        return {key: _decode(args[1], item) for key, item in value.items()}
    return float(value) if hint is float else value
