"""Process: a child process with the memory it shares, its socket and what it prints.

The tensors lie in anonymous shared memory: a file descriptor without a name, which both
processes map, so that nothing is left behind however either of them ends. Commands and
answers go through a socket pair. What the kernel prints goes through a pipe to a bounded
log. A second pipe, which only the parent holds open, ends the child when the parent dies.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from typing import Any

import numpy as np

from flashcheck import interpreter
from flashcheck.arena import Bytes

ONE_THREAD: dict[str, str] = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
LOG_BYTES = 16 * 1024
_BOOTSTRAP = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from flashcheck.worker import _child; _child(*sys.argv[2:])"
)


class SharedBytes:
    """Memory that two processes map through one file descriptor; it only ever grows."""

    def __init__(self, fd: int | None = None) -> None:
        self._bytes: Bytes = np.empty(0, np.uint8)
        if fd is not None:
            self.fd = fd
            return
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("flashcheck")
        else:
            with tempfile.TemporaryFile() as file:
                self.fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self.fd)

    def grow(self, size: int) -> Bytes:
        """All of the memory, after it has become at least `size` bytes: the parent's side."""
        if self._bytes.size < size:
            os.ftruncate(self.fd, room(size))
            self.map(room(size))
        return self._bytes

    def map(self, size: int) -> Bytes:
        """The memory as the other side has made it: the child's side."""
        if self._bytes.size != size:
            # The old mapping lives as long as a tensor on it does.
            self._bytes = np.frombuffer(mmap.mmap(self.fd, size), np.uint8)
        return self._bytes


class Log:
    """The end of what a process prints, drained by a thread so that it never blocks."""

    def __init__(self, fd: int) -> None:
        self._data = bytearray()
        self._thread = threading.Thread(target=self._drain, args=(fd,), daemon=True)
        self._thread.start()

    def _drain(self, fd: int) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(fd, 65536):
                self._data += data
                del self._data[:-LOG_BYTES]
        os.close(fd)

    def clear(self) -> None:
        self._data.clear()

    def tail(self, wait: float = 0.05) -> str:
        """What came so far; waits until the pipe is closed, or a moment for what it holds."""
        self._thread.join(wait)
        return bytes(self._data).decode(errors="replace")


class Process:
    """One child process with its socket, its log and the pipe that it lives by."""

    def __init__(self, spec: str, device: str | None, memory: int) -> None:
        self.warm = False
        self.connection, theirs = multiprocessing.Pipe(duplex=True)
        log_read, log_write = os.pipe()
        life_read, self._life = os.pipe()
        arguments = [json.dumps([str(folder) for folder in sys.path]), spec, device or ""]
        arguments += [str(fd) for fd in (theirs.fileno(), memory, life_read)]
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-P", "-c", _BOOTSTRAP, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log_write,
                stderr=log_write,
                pass_fds=(theirs.fileno(), memory, life_read),
                env=os.environ | ONE_THREAD | interpreter.environment(device),
                start_new_session=True,  # Ctrl-C in the terminal is the parent's alone
            )
        finally:
            theirs.close()
            os.close(log_write)
            os.close(life_read)
        self.log = Log(log_read)

    def alive(self) -> bool:
        return self._popen.poll() is None

    def receive(self, deadline: float) -> Any:
        """The next answer, or None after the deadline. Raises EOFError when it died."""
        try:
            while not self.connection.poll(min(0.5, max(0.0, deadline - time.monotonic()))):
                # A grandchild may hold the socket open after the child is gone.
                if not self.alive() and not self.connection.poll(0):
                    raise EOFError
                if time.monotonic() >= deadline:
                    return None
            return self.connection.recv()
        except OSError:
            raise EOFError from None

    def death(self) -> str:
        """How it ended: `was killed by SIGSEGV`, or `exited with code 3`."""
        try:
            code = self._popen.wait(2.0)
        except subprocess.TimeoutExpired:
            return "closed its connection"
        if code >= 0:
            return f"exited with code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def dump_stacks(self) -> None:
        """Have it print where it is: faulthandler does so even inside a C function."""
        with contextlib.suppress(OSError):
            self._popen.send_signal(signal.SIGUSR1)
            time.sleep(0.1)

    def end(self) -> None:
        """Kill it with all that it started. May be called twice."""
        if self._popen.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
        self.connection.close()
        if self._life >= 0:
            os.close(self._life)
            self._life = -1


def room(size: int) -> int:
    """A power of two of at least 1 MiB."""
    return max(1 << 20, 1 << (size - 1).bit_length())
