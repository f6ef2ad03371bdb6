"""Interpreter: Triton kernels on a CPU, interpreted as a GPU would compute them.

`faithful()` lets `@triton.jit` functions run in Triton's interpreter, however they were
decorated, and makes that compute what `semantics` says. All is put back after. Nothing here
imports Triton: where it is not imported yet, an import hook waits for it, so that a kernel
that does not use it pays nothing.

`environment()` is for a child process whose device is known to be the CPU before the user's
file is imported: what that file does differently under TRITON_INTERPRET, it then does.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

VARIABLE = "TRITON_INTERPRET"
OLDEST, NEWEST = (3, 6), (3, 9)
"""The first and the last version of Triton whose interpreter this was tested with."""

_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_NO_DRIVER = re.compile(r"\b0 active drivers\b")
_active = False
_launches = 0


def environment(device: str | None) -> dict[str, str]:
    """Variables for a process that will run a kernel on `device` (None: not known yet).

    A machine without any GPU leaves only the CPU.
    """
    cpu = device == "cpu" or (not device and not any(map(os.path.exists, _GPU_DEVICES)))
    return {VARIABLE: "1"} if cpu else {}


@contextmanager
def faithful() -> Iterator[None]:
    """Interpret Triton kernels on the CPU faithfully; inside of itself it does nothing."""
    global _active
    if _active:
        yield
        return
    with ExitStack() as stack:
        _active = True
        stack.callback(_leave)
        before = os.environ.get(VARIABLE)
        stack.enter_context(_variable("1"))

        def install() -> None:
            try:
                found = _replacements()
            except (AttributeError, ImportError):
                if status() is None:
                    raise
                return  # an unknown Triton: `status` says that it is not trusted
            for owner, name, value in found:
                stack.callback(setattr, owner, name, getattr(owner, name))
                setattr(owner, name, value)

        if "triton" in sys.modules:
            install()
        else:
            hook = _Hook(install, before)
            sys.meta_path.insert(0, hook)
            stack.callback(hook.remove)
        yield


def kernels_loaded() -> bool:
    """Whether a module of this process, other than torch's and Triton's own, has a Triton kernel.

    Importing Triton alone, as torch.compile does, makes no kernel a Triton kernel.
    """
    if "triton" not in sys.modules:
        return False
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("torch", "triton") or module is None:
            continue
        for value in list(getattr(module, "__dict__", {}).values()):
            # A class may have a property of that name.
            if str(type(value).__module__).startswith("triton.runtime"):
                return True
    return False


def launches() -> int:
    """How many launches of Triton kernels were interpreted in this process."""
    return _launches


def status() -> str | None:
    """What is not to be trusted about Triton on this CPU, as a sentence; None if nothing."""
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return None
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and OLDEST <= (int(numbers[1]), int(numbers[2])) <= NEWEST:
        return None
    return (
        f"triton {version} is not known to flashcheck's interpreter: bfloat16 and float8 "
        "results on a CPU are not trusted"
    )


def hint(error: BaseException) -> str:
    """What to do about an error of Triton that it found no GPU; empty for other errors."""
    if not _NO_DRIVER.search(str(error)):
        return ""
    return (
        "; Triton found no GPU: on a CPU flashcheck interprets what a kernel launches while it "
        "is called, not what its file launches when imported, nor what asks Triton for a device"
    )


# -- what is replaced ---------------------------------------------------------------------


@functools.cache
def _replacements() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, value): the interpreter's own, and the ways into it."""
    from flashcheck import semantics

    interp: Any = importlib.import_module("triton.runtime.interpreter")
    jit: Any = importlib.import_module("triton.runtime.jit")
    tuner: Any = importlib.import_module("triton.runtime.autotuner")
    made: dict[Any, Any] = {}

    def interpreted(function: Any) -> Any:
        plain = function.fn  # to hash a JITFunction itself looks through its source
        if plain not in made:
            made[plain] = interp.InterpretedFunction(plain)
            made[plain].pre_run_hooks = function.pre_run_hooks
        return made[plain]

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return interpreted(self).run(*args, **kwargs)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return interpreted(self)(*args, **kwargs)

    def bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        return [0.0, 0.0, 0.0]  # time means nothing here: the first configuration is taken

    def method(function: Any) -> Any:
        return lambda *args, **kwargs: call(function, *args, **kwargs)

    # x.sum(): a plain function is a method, a JITFunction is not.
    tensor: Any = interp.tl.tensor
    members = [(n, f) for n, f in vars(tensor).items() if isinstance(f, jit.JITFunction)]
    patching = _Patching(interp)
    return [
        *((tensor, name, method(function)) for name, function in members),
        (jit.JITFunction, "run", run),
        (jit.JITFunction, "__call__", call),
        (tuner.Autotuner, "_bench", bench),
        (interp, "_patch_lang", patching),
        (interp, "GridExecutor", _quiet_executor(interp, patching)),
        *semantics.replacements(interp),
    ]


def _leave() -> None:
    global _active
    _active = False


@contextmanager
def _variable(value: str | None) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    _set_variable(value)
    try:
        yield
    finally:
        _set_variable(before)


def _set_variable(value: str | None) -> None:
    if value is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = value


class _Hook:
    """Finds `triton` as others do, and acts once it has been imported.

    It is imported with the variable as it was before, so that it can compile again later.
    """

    def __init__(self, action: Callable[[], None], variable: str | None) -> None:
        self._action = action
        self._outer = variable

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "triton":
            return None
        self.remove()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            with _variable(self._outer):
                execute(module)
            self._action()

        loader.exec_module = exec_module
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


# -- a launch -----------------------------------------------------------------------------


class _Patching:
    """Stands for `_patch_lang`, which makes triton.language build nothing but compute.

    It does so once a launch instead of at each call of a device function, and puts all of it
    back at the end, what a device function needed too.
    """

    def __init__(self, interp: Any) -> None:
        self._modules = (interp.tl, interp.tl.core)
        self._patch = interp._patch_lang
        self._scopes: list[Any] = []
        self._done: set[int] = set()

    def __call__(self, fn: Any) -> _Patching:
        seen = {id(m) for m in fn.__globals__.values() if any(m is own for own in self._modules)}
        if not seen or not seen <= self._done:
            self._scopes.append(self._patch(fn))
            # Triton 3.6 converts an array of one element, which NumPy 2.4 refuses.
            self._modules[0].tensor.__index__ = lambda tensor: int(tensor.handle.data.item())
            self._done |= seen
        return self

    def restore(self) -> None:
        """What the interpreter calls for the outermost function alone: too early."""

    def close(self) -> None:
        while self._scopes:
            scope = self._scopes.pop()
            if scope is not None:
                scope.restore()
        self._done.clear()


def _quiet_executor(interp: Any, patching: _Patching) -> type:
    """A GridExecutor without NumPy's warnings, whose errors are those of the kernel."""
    base: Any = interp.GridExecutor

    class FaithfulExecutor(base):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> None:
            global _launches
            _launches += 1
            try:
                with np.errstate(all="ignore"):
                    super().__call__(*args, **kwargs)
                return
            except interp.InterpreterError as error:
                raised: BaseException = error
            finally:
                patching.close()
            while isinstance(raised, interp.InterpreterError) and raised.__cause__ is not None:
                raised = raised.__cause__
            raise raised

    return FaithfulExecutor
