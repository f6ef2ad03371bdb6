"""Execution: one call of a kernel on an arena, and what came of it.

The same code runs in the worker process and in the caller's own. A bad kernel never raises
here: whatever it does becomes a `Reply`.
"""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic

from flashcheck import arena, autograd, interpreter
from flashcheck.arena import Bytes
from flashcheck.call import Job, Reply, Status
from flashcheck.formats import Array
from flashcheck.grad_out import Wrt
from flashcheck.kernel import Kernel, Target, TargetError
from flashcheck.loading import NEUTRAL, one_line, user_frames


class Executor:
    """Runs a kernel on one device."""

    def __init__(self, kernel: Kernel, target: Target, device: str | None = None) -> None:
        self.kernel = kernel
        self.target = target
        self.device = find_device(device, kernel)
        self._on_device: torch.Tensor | None = None

    def execute(self, job: Job, buffer: Bytes) -> Reply:
        """Call the kernel on the tensors that `arena.write` put into the buffer."""
        try:
            return self._execute(job, buffer)
        except NotImplementedError as error:
            return _failure("unsupported", error)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too: sys.exit() in a kernel is a crash
            return _failure("error", error)

    def poisoned(self) -> bool:
        """Whether the device refuses all further work, as CUDA does after some errors."""
        if self.device.type == "cpu":
            return False
        try:
            self._synchronize()
        except RuntimeError:
            return True
        return False

    def _execute(self, job: Job, buffer: Bytes) -> Reply:
        plan = arena.plan(job.key)
        base: Bytes | torch.Tensor = buffer
        if self.device.type == "cpu":
            before = buffer[: plan.size].copy()
        else:
            before = buffer
            base = self._upload(buffer[: plan.size])
        tensors = arena.tensors(plan, base)
        q, k, v = tensors["q"], tensors["k"], tensors["v"]
        keywords = self._keywords(job, tensors)
        given: dict[Wrt, torch.Tensor] = {"q": q, "k": k, "v": v}
        leaves = {name: given[name].requires_grad_() for name in job.wrt}

        reply = Reply("ok")
        with _fresh_memory(job.fresh_output_nan), self._interpretation():
            for _ in range(job.times):
                start = time.perf_counter()
                result = self.kernel.fn(q, k, v, **keywords)
                if leaves:
                    self._differentiate(result, leaves, tensors["grad_out"], job, reply)
                self._synchronize()
                reply.seconds += time.perf_counter() - start
                # Read at once: a kernel may return the same buffer every time.
                self._read(result, job, reply)
                if reply.problem_with_output is not None:
                    reply.outs, reply.lses, reply.gradients = [], [], {}
                    break
        after = base.cpu().numpy() if isinstance(base, torch.Tensor) else base
        reply.modified = arena.changed(plan, before, after)
        return reply

    def _keywords(self, job: Job, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        target = self.target
        given = {**job.options, **{option.name: tensors[option.name] for option in job.key.options}}
        if job.passes_mask:
            given["attn_mask"] = tensors.get("mask")
        known = {*target.options, *target.required}
        for name, value in given.items():
            if name.startswith("max_seqlen"):
                continue  # said by cu_seqlens already
            if name not in known and value is not NEUTRAL[name] and value != NEUTRAL[name]:
                raise NotImplementedError(f"the kernel does not name the option {name!r}")
        keywords = {name: NEUTRAL[name] for name in target.required}
        keywords |= {name: value for name, value in given.items() if name in known}
        if job.config is not None:
            configs = self.kernel.configs or {}
            if job.config not in configs:
                raise NotImplementedError(f"the kernel has no configuration {job.config!r}")
            keywords |= configs[job.config]
        return keywords

    def _upload(self, host: Bytes) -> torch.Tensor:
        """A copy on the device, at the same address as long as it does not grow."""
        if self._on_device is None or self._on_device.numel() < host.size:
            self._on_device = torch.empty(host.size, dtype=torch.uint8, device=self.device)
        part = self._on_device[: host.size]
        part.copy_(torch.from_numpy(host))
        return part

    def _interpretation(self) -> contextlib.AbstractContextManager[None]:
        """On a CPU Triton kernels are interpreted; elsewhere they are compiled as ever."""
        on_cpu = self.device.type == "cpu"
        return interpreter.faithful() if on_cpu else contextlib.nullcontext()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _read(self, result: Any, job: Job, reply: Reply) -> None:
        """Append what one call returned to the reply, or say what is wrong with it."""
        out, lse = result, None
        if isinstance(result, (tuple, list)):
            if len(result) != 2:
                reply.problem_with_output = (
                    f"returned a {type(result).__name__} of {len(result)}; "
                    "the contract is out, or (out, lse)"
                )
                return
            out, lse = result
        b, h, length, d = job.out_shape
        shape = (b, h, length, d) if self.kernel.layout == "bhsd" else (b, length, h, d)
        problem = self._problem("out", out, shape, _out_dtypes(job.key.dtype))
        if problem is None and lse is not None:
            statistics = "float64" if job.key.dtype == "float64" else "float32"
            problem = self._problem("lse", lse, (b, h, length), (statistics,))
        if isinstance(out, torch.Tensor):
            reply.out_dtype = _name(out.dtype)
        if isinstance(lse, torch.Tensor):
            reply.lse_dtype = _name(lse.dtype)
        if problem is not None:
            reply.problem_with_output = problem
            return
        if self.kernel.layout == "bshd":
            out = out.transpose(1, 2)
        reply.outs.append(_float64(out))
        if lse is not None:
            base = math.log(2.0) if self.kernel.lse_base == "2" else 1.0
            reply.lses.append(_float64(lse) * base if base != 1.0 else _float64(lse))

    def _differentiate(
        self,
        result: Any,
        leaves: dict[Wrt, torch.Tensor],
        grad_out: torch.Tensor,
        job: Job,
        reply: Reply,
    ) -> None:
        """Add the gradients of the first output to the reply, or say what is wrong with them.

        Raises Detached, and Traced where nobody declares that autograd's gradients are meant.
        """
        out = result[0] if isinstance(result, (tuple, list)) and result else result
        if not isinstance(out, torch.Tensor):
            return  # `_read` says it
        reply.backward, own = autograd.written(out)
        wanted = " and ".join(leaves)
        if not out.requires_grad:
            raise autograd.Detached(f"out has no grad_fn, although {wanted} requires a gradient")
        if not own and self.kernel.backward is None:
            raise autograd.Traced(f"{reply.backward} comes of tracing the forward")
        found = autograd.gradients(out, leaves, grad_out, job.passes)
        bshd = self.kernel.layout == "bshd"
        for name, (b, h, length, d) in job.gradient_shapes.items():
            gradient = found[name]
            shape = (b, length, h, d) if bshd else (b, h, length, d)
            problem = self._problem(name, gradient, shape, (job.key.dtype,))
            if problem is not None or gradient is None:
                reply.problem_with_output = problem
                return
            moved = gradient.transpose(1, 2) if bshd else gradient
            reply.gradients[name] = _float64(moved)

    def _problem(
        self, name: str, value: Any, shape: tuple[int, ...], dtypes: tuple[str, ...]
    ) -> str | None:
        if not isinstance(value, torch.Tensor):
            what = "None" if value is None else f"a {type(value).__name__}"
            return f"{name} is {what}, not a torch tensor"
        if tuple(value.shape) != shape:
            return f"{name} has shape {list(value.shape)}; it should be {list(shape)}"
        if _name(value.dtype) not in dtypes:
            return f"{name} has dtype {_name(value.dtype)}; it should be {' or '.join(dtypes)}"
        if value.device != self.device:
            return f"{name} is on {value.device}; it should be on {self.device}"
        return None


def find_device(device: str | None, kernel: Kernel) -> torch.device:
    """The device to run on. Raises TargetError where it is not there.

    None is the CPU, or else the first device that the kernel declares.
    """
    declared = list(kernel.devices or ("cpu",))
    name = device or ("cpu" if "cpu" in declared else declared[0])
    try:
        found = torch.device(name)
    except RuntimeError:
        raise TargetError(f"{name!r} is not a device: write cpu, cuda or cuda:INDEX") from None
    if found.type == "cpu":
        return torch.device("cpu")
    if found.type != "cuda":
        raise TargetError(f"device {name} cannot be used: write cpu, cuda or cuda:INDEX")
    index = found.index or 0
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        seen = (
            f"torch sees {count} CUDA device{'s' if count > 1 else ''}"
            if count
            else ("torch sees no CUDA device; run with --device cpu")
        )
        raise TargetError(f"device cuda:{index} is not there: {seen}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


@contextlib.contextmanager
def _fresh_memory(nan: bool | None) -> Iterator[None]:
    """Fill what torch allocates with NaN (True) or leave it (False), deterministically.

    The debug mode "warn" is use_deterministic_algorithms(True, warn_only=True) without the
    import of torch's compiler (1.6 s) and without a change of what that compiles.
    """
    if nan is None:
        yield
        return
    deterministic: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.set_deterministic_debug_mode("warn")
            deterministic.fill_uninitialized_memory = nan
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            deterministic.fill_uninitialized_memory = fill


def _failure(status: Status, error: BaseException) -> Reply:
    name = type(error).__name__
    frames = [
        f"{frame.filename}:{frame.lineno} in {frame.name}\n    {frame.line}"
        for frame in user_frames(error)[-5:]
    ]
    message = one_line(error).removeprefix(name).removeprefix(": ") + interpreter.hint(error)
    return Reply(status, exception=name, message=message, traceback="\n".join(frames))


def _out_dtypes(dtype: str) -> tuple[str, ...]:
    return ("bfloat16", "float16") if dtype.startswith("float8") else (dtype,)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _float64(tensor: torch.Tensor) -> Array:
    """A copy as contiguous float64."""
    copy = tensor.detach().to("cpu", torch.float64, copy=True)
    return np.ascontiguousarray(copy.numpy())
