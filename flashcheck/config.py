"""Configuration: [tool.flashcheck] of pyproject.toml, or flashcheck.toml."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

KEYS: dict[str, type | tuple[type, ...]] = {
    "kernels": list,
    "dtype": (list, str),
    "device": str,
    "budget": (str, int),
    "seed": int,
    "examples": str,
    "regressions": str,
    "report": (list, str),
    "timeout": (int, float),
    "max_vacuous": float,
    "min_power": float,
}
"""What may be configured: `kernels` are the TARGETs, `regressions` is where `promote` keeps
examples, the others are the flags of that name."""


class ConfigError(Exception):
    """A configuration that cannot be used: one line that says where and what to do."""


def load(folder: Path) -> dict[str, Any]:
    """The settings of `folder`: flashcheck.toml, else [tool.flashcheck] of pyproject.toml.

    Raises ConfigError.
    """
    for name, table in (("flashcheck.toml", ()), ("pyproject.toml", ("tool", "flashcheck"))):
        path = folder / name
        if not path.is_file():
            continue
        try:
            data: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
            if name == "pyproject.toml" and not isinstance(error, tomllib.TOMLDecodeError):
                continue
            raise ConfigError(f"cannot read {name}: {error}") from None
        for key in table:
            data = data.get(key, {}) if isinstance(data, dict) else {}
        if data:
            return _checked(data, name)
    return {}


def _checked(data: Any, name: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ConfigError(f"{name}: tool.flashcheck must be a table")
    for key, value in data.items():
        if key not in KEYS:
            close = difflib.get_close_matches(key, KEYS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(KEYS)}"
            raise ConfigError(f"{name}: unknown key {key!r}{hint}")
        if not isinstance(value, KEYS[key]) or isinstance(value, bool):
            raise ConfigError(f"{name}: {key} cannot be {value!r}")
    return dict(data)
