"""flashcheck: the numerical correctness gate for attention kernels.

The public names are loaded when first used, so that the pytest plugin, which every pytest run
imports, stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashcheck.assertion import assert_within_bound as assert_within_bound
    from flashcheck.capturing import capture as capture
    from flashcheck.checking import check as check
    from flashcheck.checking import space as space
    from flashcheck.gating import Result as Result
    from flashcheck.gating import gate as gate
    from flashcheck.kernel import Contract as Contract
    from flashcheck.kernel import Kernel as Kernel
    from flashcheck.problem import Problem as Problem
    from flashcheck.strategies import Space as Space
    from flashcheck.strategies import problems as problems
    from flashcheck.tensors import inputs_of as inputs_of
    from flashcheck.verdict import Check as Check
    from flashcheck.verdict import CheckFailed as CheckFailed
    from flashcheck.verdict import Verdict as Verdict

__version__ = "0.1.0"

_HOME = {
    "Check": "verdict",
    "CheckFailed": "verdict",
    "Contract": "kernel",
    "Kernel": "kernel",
    "Problem": "problem",
    "Result": "gating",
    "Space": "strategies",
    "Verdict": "verdict",
    "assert_within_bound": "assertion",
    "capture": "capturing",
    "check": "checking",
    "gate": "gating",
    "inputs_of": "tensors",
    "problems": "strategies",
    "space": "checking",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'flashcheck' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"flashcheck.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
