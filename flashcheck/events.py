"""Events: what a run of the gate tells its listeners, in order.

RunStarted, then per target TargetStarted (or TargetFailed), Checked for every check,
FailureFound once for each cause after it was shrunk, TargetFinished; at last RunFinished.
Reports are made from these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flashcheck.kernel import Target
from flashcheck.problem import Problem
from flashcheck.verdict import Check


@dataclass(frozen=True, slots=True)
class RunStarted:
    """What was asked for: `dtypes` and `device` are None where the kernel decides."""

    targets: tuple[str, ...]
    dtypes: tuple[str, ...] | None
    device: str | None
    budget: str
    seed: int
    command: str
    environment: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TargetStarted:
    """`untested` are sentences: options not visible, dtypes refused, lse not returned."""

    target: Target
    dtypes: tuple[str, ...]
    device: str
    untested: tuple[str, ...]
    checks_planned: int | None


@dataclass(frozen=True, slots=True)
class TargetFailed:
    """The target could not be run at all (exit code 2)."""

    spec: str
    message: str


@dataclass(frozen=True, slots=True)
class Checked:
    """One property held or not on one problem.

    `regression` is the id of the kept example that the problem is, "" for a generated one.
    """

    target: str
    dtype: str
    problem: Problem
    config: str | None
    check: Check
    regression: str = ""


@dataclass(frozen=True, slots=True)
class FailureFound:
    """One cause. `count` failing checks share it; `check` is that of the shrunk problem.

    alike: the example of an earlier failure with the same likely cause, whose number of checks
    this one adds to; "" for a cause of its own.
    """

    target: str
    dtype: str
    example_id: str
    problem: Problem
    config: str | None
    check: Check
    count: int
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]
    contrast: tuple[str, ...] = ()
    text: str = ""
    found: Problem | None = None
    alike: str = ""


@dataclass(frozen=True, slots=True)
class TargetFinished:
    """`enough` is False where a property got fewer checks than prove anything."""

    target: str
    seconds: float
    stopped_by: str
    thin: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PowerSampled:
    """Of so many searches on kernels that are broken on purpose, how many caught the fault.

    limit: the lower confidence limit of that share; problems: the median that a search took;
    survivors: a line for each that survived, as in `power.page.survivors`.
    """

    trials: int
    killed: int
    limit: float
    problems: float
    survivors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The outcome; `partial` where the run was interrupted."""

    exit_code: int
    reason: str
    seconds: float
    partial: bool = False


Event = (
    RunStarted
    | TargetStarted
    | TargetFailed
    | Checked
    | FailureFound
    | TargetFinished
    | PowerSampled
    | RunFinished
)
Listener = Callable[[Event], None]
