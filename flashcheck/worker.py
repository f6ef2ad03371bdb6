"""Worker: a kernel in a child process of its own, or, for debuggers, in this one."""

from __future__ import annotations

import contextlib
import faulthandler
import math
import mmap
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from flashcheck import arena, interpreter
from flashcheck.arena import Bytes
from flashcheck.call import Call as Call
from flashcheck.call import Job
from flashcheck.call import Reply as Reply
from flashcheck.formats import Array
from flashcheck.kernel import Kernel, Target, TargetError
from flashcheck.loading import describe, load, one_line
from flashcheck.process import Process, SharedBytes, room

if TYPE_CHECKING:
    from flashcheck.execution import Executor


class InProcess:
    """A kernel run in this process: the same interface as Worker's, without its safety."""

    def __init__(
        self, target: str | Kernel | Callable[..., Any], device: str | None = None
    ) -> None:
        self._given = target
        self._device = device
        self._executor: Executor | None = None
        self._pending: Call | None = None
        self._buffer: Bytes = np.empty(0, np.uint8)

    @property
    def device(self) -> str:
        """Where it runs, as torch writes it; known after `start`."""
        return str(self._started().device)

    def start(self) -> Target:
        """Load the kernel. Raises TargetError."""
        return self._started().target

    def submit(self, call: Call) -> None:
        self.start()
        self._pending = call

    def result(self) -> Reply:
        call, self._pending = self._pending, None
        if call is None:
            raise RuntimeError("no call was submitted")
        executor = self._started()
        job = Job.of(call, executor.kernel)
        plan = arena.plan(job.key)
        if self._buffer.size < plan.size:
            self._buffer = np.frombuffer(mmap.mmap(-1, room(plan.size)), np.uint8)
        arena.write(plan, call.inputs, self._buffer, call.guard, call.upstream)
        return executor.execute(job, self._buffer)

    def call(self, call: Call) -> Reply:
        self.submit(call)
        return self.result()

    def close(self) -> None:
        self._pending = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _started(self) -> Executor:
        if self._executor is None:
            from flashcheck.execution import Executor

            given = self._given
            kernel, target = load(given) if isinstance(given, str) else describe(given)
            self._executor = Executor(kernel, target, self._device)
        return self._executor


class Worker:
    """The parent's handle of a child process that runs one kernel.

    `start` raises TargetError; so does `submit` where the process must be replaced and the
    kernel cannot be loaded any more. Whatever else the kernel does is in the reply.

    timeout         seconds that a call may take
    warmup_timeout  seconds for loading, and for a process's first call (imports, compiling).
                    A process that replaces one that died or hung first repeats the last call
                    that went well, so that the next one has `timeout` again

    One thread may use a worker at a time. A call that is out when the worker is interrupted
    or closed is lost, with its process.
    """

    def __init__(
        self,
        spec: str,
        device: str | None = None,
        timeout: float = 60.0,
        warmup_timeout: float = 300.0,
    ) -> None:
        self.spec = spec
        self.timeout = timeout
        self.warmup_timeout = warmup_timeout
        self._asked_device = device
        self._memory = SharedBytes()
        self._process: Process | None = None
        self._target: Target | None = None
        self._device = ""
        self._pending: tuple[Call, Job, float] | None = None
        self._last_good: Call | None = None
        # Once a call has hung with all the time of a first call, the next ones get `timeout`.
        self._hung = False

    def afresh(self, seconds: float) -> Worker:
        """Another worker of the same kernel, not called yet, which starts and calls in so many."""
        limits = min(self.timeout, seconds), min(self.warmup_timeout, seconds)
        return Worker(self.spec, self._asked_device, *limits)

    @property
    def device(self) -> str:
        """Where it runs, as torch writes it; known after `start`."""
        self.start()
        return self._device

    def start(self) -> Target:
        """Start the process and load the kernel, once. Raises TargetError."""
        if self._target is None:
            self._launch()
            assert self._target is not None
        return self._target

    def submit(self, call: Call) -> None:
        """Start a call; `result` waits for it. Restarts the process where it is gone."""
        target = self.start()
        if self._pending is not None:
            raise RuntimeError("the result of the last call was not fetched")
        if self._process is None or not self._process.alive():
            self._restart(target)
        self._send(call, target)

    def result(self) -> Reply:
        """The reply to the call that was submitted. Never raises for a bad kernel."""
        if self._pending is None:
            raise RuntimeError("no call was submitted")
        call = self._pending[0]
        reply = self._receive()
        if reply.status == "ok":
            self._last_good = call
        self._hung = self._hung or reply.status == "timeout"
        return reply

    def call(self, call: Call) -> Reply:
        self.submit(call)
        return self.result()

    def close(self) -> None:
        """End the process and free the memory. A later call starts a new process."""
        self._pending = None
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _launch(self) -> None:
        process = Process(self.spec, self._asked_device, self._memory.fd)
        self._process = process
        self._end = weakref.finalize(self, process.end)
        try:
            answer = process.receive(time.monotonic() + self.warmup_timeout)
            if answer is None:
                raise TargetError(
                    f"cannot load {self.spec!r}: not done after {self.warmup_timeout:g} s"
                )
        except EOFError:
            last = (process.log.tail(0.5).strip().splitlines() or [""])[-1]
            said = f"; it last printed: {last[:200]}" if last else ""
            how = process.death()
            self._stop()
            raise TargetError(f"cannot load {self.spec!r}: its process {how}{said}") from None
        except BaseException:
            self._stop()
            raise
        if isinstance(answer, str):
            self._stop()
            raise TargetError(answer)
        self._target, self._device = answer

    def _restart(self, target: Target) -> None:
        self._stop()
        self._launch()
        if self._last_good is not None:
            good, self._last_good = self._last_good, None
            self._send(good, target)
            if self._receive().status == "ok":
                self._last_good = good
            if self._process is None:
                self._launch()

    def _send(self, call: Call, target: Target) -> None:
        assert self._process is not None
        job = Job.of(call, target.kernel)
        plan = arena.plan(job.key)
        size = plan.size + _results_size(job)
        buffer = self._memory.grow(size)
        arena.write(plan, call.inputs, buffer, call.guard, call.upstream)
        warm = self._process.warm or self._hung
        limit = self.timeout if warm else max(self.warmup_timeout, self.timeout)
        self._process.log.clear()
        self._pending = (call, job, time.monotonic() + limit)
        with contextlib.suppress(OSError):  # it died just now: receiving says so
            self._process.connection.send((job, buffer.size))

    def _receive(self) -> Reply:
        assert self._pending is not None
        assert self._process is not None
        _, job, deadline = self._pending
        process = self._process
        try:
            answer = process.receive(deadline)
            if answer is None:
                process.dump_stacks()
                limit = self.timeout if process.warm or self._hung else self.warmup_timeout
                reply = Reply("timeout", message=f"no answer within {limit:g} s")
                reply.output = process.log.tail()
                self._stop()
            else:
                reply, has_lse, poisoned = answer
                self._fetch(job, reply, has_lse)
                process.warm = True
                if reply.status == "error":
                    reply.output = process.log.tail()
                if poisoned:
                    self._stop()
        except EOFError:
            reply = Reply("died", message=process.death(), output=process.log.tail(0.5))
            self._stop()
        except BaseException:
            # Ctrl-C: the call is still out, and its answer would be taken for the next one's.
            self._stop()
            raise
        finally:
            self._pending = None
        return reply

    def _fetch(self, job: Job, reply: Reply, has_lse: bool) -> None:
        if reply.status != "ok" or reply.problem_with_output is not None:
            return
        outs, lses, gradients = _results(job, self._memory.grow(0))
        reply.outs = [a.copy() for a in outs]
        reply.lses = [a.copy() for a in lses] if has_lse else []
        reply.gradients = {name: a.copy() for name, a in gradients.items()}

    def _stop(self) -> None:
        if self._process is not None:
            self._end()
        self._process = None


# -- results in shared memory: after the arena, outs, lses and gradients as float64 --------


def _results_size(job: Job) -> int:
    b, h, length, d = job.out_shape
    gradients = sum(map(math.prod, job.gradient_shapes.values()))
    return 8 * (job.times * b * h * length * (d + 1) + gradients)


def _results(job: Job, buffer: Bytes) -> tuple[list[Array], list[Array], dict[str, Array]]:
    """Views [B, Hq, Lq, Dv] and [B, Hq, Lq], one of each for each time, and of the gradients."""
    b, h, length, d = job.out_shape
    start = arena.plan(job.key).size
    rows = b * h * length
    data = buffer[start : start + _results_size(job)].view(np.float64)
    outs = data[: job.times * rows * d].reshape(job.times, b, h, length, d)
    end = job.times * rows * (d + 1)
    lses = data[job.times * rows * d : end].reshape(job.times, b, h, length)
    gradients = {}
    for name, shape in job.gradient_shapes.items():
        gradients[name] = data[end : end + math.prod(shape)].reshape(shape)
        end += math.prod(shape)
    return list(outs), list(lses), gradients


# -- the child ----------------------------------------------------------------------------


def _child(spec: str, device: str, socket: str, memory: str, life: str) -> None:
    """The child's main function: says what it loaded, then answers until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    threading.Thread(target=_follow_parent, args=(int(life),), daemon=True).start()
    connection: Connection = Connection(int(socket))
    shared = SharedBytes(int(memory))
    try:
        import torch

        torch.set_num_threads(1)
        torch.set_num_interop_threads(1)
        from flashcheck.execution import Executor

        kernel, target = load(spec)
        executor = Executor(kernel, target, device or None)
        if executor.device.type == "cpu" and interpreter.kernels_loaded():
            target = replace(target, interpreted=True, note=interpreter.status())
        connection.send((target, str(executor.device)))
    except TargetError as error:
        connection.send(str(error))
        os._exit(0)
    except Exception as error:
        connection.send(f"cannot load {spec!r}: {one_line(error)}")
        os._exit(0)
    for job, size in _jobs(connection):
        buffer = shared.map(size)
        reply = executor.execute(job, buffer)
        has_lse = len(reply.lses) > 0
        outs, lses, gradients = _results(job, buffer)
        for views, arrays in ((outs, reply.outs), (lses, reply.lses)):
            for view, array in zip(views, arrays, strict=False):
                view[...] = array
        for name, gradient in reply.gradients.items():
            gradients[name][...] = gradient
        poisoned = reply.status == "error" and executor.poisoned()
        bare = replace(reply, outs=[], lses=[], gradients={})
        connection.send((bare, has_lse, poisoned))
    # Without the interpreter's farewell: a user's threads and atexit hooks may hang.
    os._exit(0)


def _jobs(connection: Connection) -> Iterator[tuple[Job, int]]:
    while True:
        try:
            yield connection.recv()
        except (EOFError, OSError):
            return


def _follow_parent(life: int) -> None:
    """End this process when the parent's end of the pipe closes, even inside a kernel."""
    os.read(life, 1)
    os._exit(0)
