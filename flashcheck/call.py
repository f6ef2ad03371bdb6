"""Call and Reply: what a kernel is asked to run, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flashcheck import arena
from flashcheck.arena import Guard, Key
from flashcheck.formats import Array
from flashcheck.grad_out import GradOut, Wrt
from flashcheck.inputs import Inputs
from flashcheck.kernel import Kernel

Status = Literal["ok", "unsupported", "error", "died", "timeout"]


@dataclass(frozen=True, eq=False)
class Call:
    """What to run.

    config            one of the kernel's configurations
    guard             what the memory holds that surrounds and pads the tensors
    fresh_output_nan  whether torch fills new tensors with NaN (None: torch's default, which
                      is no filling at all)
    times             how often, on the same storage
    grad_out          the gradients to compute besides, or None for the forward pass alone

    Errors: NotImplementedError for inputs with an option that no kernel is passed yet.
    """

    inputs: Inputs
    config: str | None = None
    guard: Guard = "zeros"
    fresh_output_nan: bool | None = None
    times: int = 1
    grad_out: GradOut | None = None

    def __post_init__(self) -> None:
        self.inputs.options()  # refuses what would otherwise be left out in silence

    @property
    def upstream(self) -> Array | None:
        """The values of grad_out, or None."""
        return None if self.grad_out is None else self.grad_out.values


@dataclass(slots=True)
class Reply:
    """What came of a call.

    status   "ok"; "unsupported" (NotImplementedError, or an option that the kernel does not
             name); "error" (any other exception); "died" (the process did); "timeout"
    outs     float64 [B, Hq, Lq, Dv], one for each time; empty where there is no good output
    lses     float64 [B, Hq, Lq], natural log; empty where only out was returned
    gradients float64 "dq" [B, Hq, Lq, D], "dk" [B, Hkv, Lk, D] and "dv" [B, Hkv, Lk, Dv], those
             that were asked for, of the last time
    backward what autograd differentiates out by, where gradients were asked for
    modified input tensors whose bytes, or the bytes around them, changed
    problem_with_output  a sentence when what was returned is not what the contract asks for
    exception, message   the type of the exception and the first line of its text; for
             "died" and "timeout" the message says how
    traceback  the user's own frames
    output   the end of what was printed, where the call did not succeed
    seconds  in the kernel, all times together
    """

    status: Status
    outs: list[Array] = field(default_factory=list)
    lses: list[Array] = field(default_factory=list)
    gradients: dict[str, Array] = field(default_factory=dict)
    backward: str = ""
    out_dtype: str = ""
    lse_dtype: str = ""
    modified: tuple[str, ...] = ()
    problem_with_output: str | None = None
    exception: str = ""
    message: str = ""
    traceback: str = ""
    output: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """A call without its tensors, which lie in the buffer at the places of arena.plan(key)."""

    key: Key
    options: dict[str, object]
    passes_mask: bool
    config: str | None
    fresh_output_nan: bool | None
    times: int
    wrt: tuple[Wrt, ...] = ()
    passes: int = 1

    @staticmethod
    def of(call: Call, kernel: Kernel) -> Job:
        inputs = call.inputs
        if inputs.places is not None:
            raise NotImplementedError("a kernel runs a whole call, and this is a part of one")
        tensors = inputs.option_tensors
        return Job(
            key=arena.key_of(inputs, kernel.layout, call.grad_out),
            options={n: value for n, value in inputs.options().items() if n not in tensors},
            passes_mask=inputs.mask is not None or "attn_mask" in inputs.passed,
            config=call.config,
            fresh_output_nan=call.fresh_output_nan,
            times=call.times,
            wrt=() if call.grad_out is None else call.grad_out.wrt,
            passes=1 if call.grad_out is None else call.grad_out.passes,
        )

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """[B, Hq, Lq, Dv]."""
        (b, h, length, _), v = self.key.q, self.key.v
        return b, h, length, v[3]

    @property
    def gradient_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape, [B, H, L, channels], of each gradient that is asked for."""
        return {f"d{name}": getattr(self.key, name) for name in self.wrt}
