"""Loading: from a TARGET string to a kernel and what can be seen of it.

A TARGET is a registered name (`numpy_online`, `torch_sdpa[math]`, or with an injected fault
`numpy_online+acc_not_rescaled`), `package.module:attribute` or `path/to/file.py:attribute`.
Whatever is wrong with one is said in one line.
"""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from flashcheck import fault, interpreter
from flashcheck.kernel import OPTIONS, Kernel, Target, TargetError, absent

KERNELS = "flashcheck.kernels"

NEUTRAL: dict[str, Any] = {
    "scale": None,
    "is_causal": False,
    "attn_mask": None,
    "enable_gqa": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "alibi_slopes": None,
    "sinks": None,
    "num_splits": 1,
    "cu_seqlens_q": None,
    "cu_seqlens_k": None,
    "max_seqlen_q": None,
    "max_seqlen_k": None,
    "block_table": None,
    "cache_seqlens": None,
    "q_descale": None,
    "k_descale": None,
    "v_descale": None,
}
"""The value at which an option changes nothing."""

WELL_KNOWN: dict[str, str] = {
    "torch._C._nn.scaled_dot_product_attention": "torch_sdpa",
}
"""Public functions whose signature cannot be read, and the registered kernel that calls them."""

_HERE = os.path.dirname(os.path.abspath(__file__))
_VARIANT = re.compile(r"(?P<name>[^\[\]+]+)(\[(?P<variant>[^\[\]]*)\])?(\+(?P<fault>[a-z0-9_]+))?")
_FORMS = "write a registered name, package.module:attribute or path/to/file.py:attribute"


def load(spec: str) -> tuple[Kernel, Target]:
    """Resolve a TARGET, importing its module. Raises TargetError, whose text is one line."""
    left, colon, attribute = spec.strip().rpartition(":")
    if not colon:
        return describe(_registered(spec.strip()), spec.strip(), name=spec.strip())
    if _is_file(left) and not attribute:
        raise TargetError(_without_attribute(left))
    if not left or not attribute:
        raise TargetError(f"{spec!r} names no {'module' if not left else 'attribute'}: {_FORMS}")
    if _is_file(left):
        module = _import_file(left, spec)
        name = f"{Path(left).name}:{attribute}"
    else:
        module = _import_module(left, spec)
        name = f"{left}:{attribute}"
    return describe(_attribute(module, attribute, spec), spec.strip(), name=name)


def describe(
    obj: object, spec: str | None = None, *, name: str | None = None
) -> tuple[Kernel, Target]:
    """The kernel in `obj`, a callable or a Kernel, and its Target. Raises TargetError."""
    if spec is None:
        function = obj.fn if isinstance(obj, Kernel) else obj
        spec = str(getattr(function, "__qualname__", type(function).__name__))
    kernel = obj if isinstance(obj, Kernel) else _as_kernel(obj, spec)
    options, required, hidden = _options(kernel, spec)
    file, line = _where(kernel.fn)
    dtypes = None if kernel.dtypes is None else [_dtype_name(d) for d in kernel.dtypes]
    kernel = replace(kernel, dtypes=dtypes)
    declared = kernel.configs
    configs = None if declared is None else {c: _printable(kw) for c, kw in declared.items()}
    return kernel, Target(
        name=kernel.name or name or spec,
        spec=spec,
        kernel=replace(kernel, fn=absent, configs=configs),
        options=options,
        required=required,
        hidden=hidden,
        source=_digest(file),
        file=file,
        line=line,
        wrapped=isinstance(obj, Kernel),
    )


def registered() -> tuple[str, ...]:
    """The names of the kernels that come with flashcheck, without importing them."""
    package = importlib.import_module(KERNELS)
    return tuple(
        sorted(
            info.name
            for info in pkgutil.iter_modules(package.__path__)
            if not info.ispkg and _defines_kernel(package, info.name)
        )
    )


def _defines_kernel(package: ModuleType, name: str) -> bool:
    """Whether the module defines `kernel`: others hold what kernels share."""
    (folder,) = package.__path__
    text = (Path(folder) / f"{name}.py").read_text(encoding="utf-8")
    return re.search(r"^kernel\b", text, re.MULTILINE) is not None


# -- finding the object -------------------------------------------------------------------


def _registered(spec: str) -> object:
    if _is_file(spec):
        raise TargetError(_without_attribute(spec))
    match = _VARIANT.fullmatch(spec)
    name, variant = (match["name"], match["variant"]) if match else (spec, None)
    broken = match["fault"] if match else None
    names = registered()
    if name not in names:
        hint = _close(name, names)
        if not hint and "." in name:
            hint = f"; did you mean {':'.join(name.rsplit('.', 1))}?"
        known = f"registered: {', '.join(names)}" if names else "none is registered"
        rest = "" if hint else f" ({known}); or {_FORMS}"
        raise TargetError(f"no kernel is called {name!r}{hint}{rest}")
    module = _import(f"{KERNELS}.{name}", spec)
    if broken is not None:
        try:
            module = fault.load(name, broken)
        except fault.FaultError as error:
            raise TargetError(f"cannot load {spec!r}: {error}") from None
    if variant is None:
        return module.kernel
    variants: Mapping[str, Any] = getattr(module, "variants", {})
    if variant not in variants:
        known = f"it has: {', '.join(variants)}" if variants else "it has none"
        raise TargetError(
            f"{name!r} has no variant {variant!r}{_close(variant, variants)} ({known})"
        )
    return variants[variant]


def _is_file(text: str) -> bool:
    return text.endswith(".py") or "/" in text or os.sep in text


def _without_attribute(path: str) -> str:
    defined: list[str] = []
    try:
        for node in ast.parse(Path(path).read_text()).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                defined.append(node.name)
    except (OSError, SyntaxError, ValueError):
        if not Path(path).is_file():
            return f"no such file: {path} (and the attribute is missing: write FILE.py:FUNCTION)"
    hint = f"; it defines {', '.join(defined[:8])}" if defined else ""
    return f"{path!r} does not say which function: write {path}:FUNCTION{hint}"


def _import_file(path: str, spec: str) -> ModuleType:
    """Import a file under a name of its own, its folder on sys.path as a script's is."""
    file = Path(path).expanduser()
    if not file.exists():
        folder = file.parent
        if not folder.is_dir():
            raise TargetError(f"no such file: {path} (there is no folder {folder})")
        raise TargetError(f"no such file: {path}{_close(file.name, os.listdir(folder))}")
    if not file.is_file() or file.suffix != ".py":
        raise TargetError(f"{path} is not a Python file: write FILE.py:FUNCTION")
    file = file.resolve()
    digest = hashlib.sha256(str(file).encode() + file.read_bytes()).hexdigest()[:12]
    name = f"flashcheck_target_{re.sub(r'[^0-9a-zA-Z_]', '_', file.stem)}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    _on_path(str(file.parent))
    module_spec = importlib.util.spec_from_file_location(name, file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _import_error(error, spec) from error
    return module


def _import_module(name: str, spec: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(f"{spec!r}: {name!r} is not a module's name; {_FORMS}")
    _on_path(os.getcwd())
    return _import(name, spec)


def _import(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (name == missing or name.startswith(missing + ".")):
            place = "" if missing == name else f" in {name!r}"
            raise TargetError(
                f"cannot load {spec!r}: there is no module {missing!r}{place} "
                "(it must be installed, or lie in the current folder)"
            ) from error
        raise _import_error(error, spec) from error


def _import_error(error: BaseException, spec: str) -> TargetError:
    """What an import raised, with the user's own line."""
    if isinstance(error, SyntaxError):
        where = f"{_short(error.filename or '?')}:{error.lineno}"
        return TargetError(f"cannot load {spec!r}: {type(error).__name__}: {error.msg} ({where})")
    frames = user_frames(error)
    where = f" ({_short(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    text = f"cannot load {spec!r}: {one_line(error)}{where}"
    if isinstance(error, ImportError) and "relative import" in str(error):
        text += "; name it package.module:attribute instead of by its file"
    return TargetError(text + interpreter.hint(error))


def _attribute(module: ModuleType, path: str, spec: str) -> object:
    obj: Any = module
    seen = module.__name__ if not module.__name__.startswith("flashcheck_target_") else "the file"
    for part in path.split("."):
        if not hasattr(obj, part):
            names = [n for n in dir(obj) if not n.startswith("_")]
            hint = _close(part, names)
            if not hint:
                own = [n for n in names if getattr(getattr(obj, n), "__module__", "") == seen]
                functions = own or [n for n in names if inspect.isroutine(getattr(obj, n, None))]
                hint = f"; it has {', '.join(functions[:8])}" if functions else ""
            raise TargetError(f"cannot load {spec!r}: {seen} has no {part!r}{hint}")
        obj = getattr(obj, part)
        seen = f"{part!r}"
    return obj


# -- what can be seen of it ---------------------------------------------------------------


def _as_kernel(obj: object, spec: str) -> Kernel:
    if not callable(obj):
        raise TargetError(
            f"{spec!r} is {_kind(obj)}, which cannot be called: "
            "name a function (query, key, value, **options) or a flashcheck Kernel"
        )
    if inspect.isclass(obj):
        raise TargetError(f"{spec!r} is a class: name a function, or an instance of it")
    name = f"{getattr(obj, '__module__', '')}.{getattr(obj, '__qualname__', '')}"
    if name in WELL_KNOWN:
        kernel = _registered(WELL_KNOWN[name])
        assert isinstance(kernel, Kernel)
        return replace(kernel, name=name.rpartition(".")[2])
    return Kernel(obj)


def _options(kernel: Kernel, spec: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """(options, required, hidden) of a kernel."""
    if kernel.options is not None:
        for name in kernel.options:
            if name not in OPTIONS:
                raise TargetError(
                    f"{spec!r} declares the unknown option {name!r}{_close(name, OPTIONS)} "
                    f"(options are {', '.join(OPTIONS)})"
                )
    declared = tuple(o for o in OPTIONS if o in (kernel.options or ()))
    try:
        signature = inspect.signature(kernel.fn)
    except (TypeError, ValueError):
        return declared, (), kernel.options is None
    parameters = list(signature.parameters.values())
    _check_callable(kernel, signature, spec)
    kinds = inspect.Parameter
    rest = [
        p
        for p in _after_tensors(parameters)
        if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY) and p.name in OPTIONS
    ]
    required = tuple(p.name for p in rest if p.default is kinds.empty)
    if kernel.options is not None:
        return declared, required, False
    if any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        return (), required, True
    names = {p.name for p in rest}
    return tuple(o for o in OPTIONS if o in names), required, False


def _after_tensors(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """The parameters that are left when query, key and value are given by position."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [p for p in parameters if p.kind in positional][:3]
    return [p for p in parameters if p not in taken]


def _check_callable(kernel: Kernel, signature: inspect.Signature, spec: str) -> None:
    """Refuse a function that cannot be called as the contract says."""
    needed = {
        p.name: NEUTRAL[p.name]
        for p in _after_tensors(list(signature.parameters.values()))
        if p.name in NEUTRAL and p.default is p.empty
    }
    for config, given in (kernel.configs or {"": {}}).items():
        try:
            signature.bind(None, None, None, **{**needed, **given})
        except TypeError as error:
            place = f" with config {config!r}" if config else ""
            raise TargetError(
                f"{spec!r} cannot be called as fn(query, key, value, **options){place}: {error}; "
                "give further parameters a default, or fix them with Kernel(configs=...)"
            ) from error


def _where(fn: Callable[..., Any]) -> tuple[str | None, int | None]:
    """File and line where a function is defined, seen through wrappers and partials."""
    inner: Any = fn
    while True:
        inner = inspect.unwrap(inner)
        if isinstance(inner, functools.partial):
            inner = inner.func
        elif inspect.ismethod(inner):
            inner = inner.__func__
        else:
            break
    code = getattr(inner, "__code__", None)
    if code is None and not inspect.isroutine(inner):
        # An instance with __call__, or a JIT object that keeps its function in `fn`.
        for attribute in ("fn", "forward"):
            if callable(getattr(inner, attribute, None)):
                inner = getattr(inner, attribute)
                break
        else:
            inner = type(inner).__call__
        code = getattr(inner, "__code__", None)
    if code is None or not os.path.isfile(code.co_filename):
        return None, None
    return os.path.abspath(code.co_filename), code.co_firstlineno


def _digest(file: str | None) -> str | None:
    return None if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()


# -- errors and words ------------------------------------------------------------------


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of a traceback that are the user's, or else all but flashcheck's own."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
        and os.path.dirname(os.path.abspath(frame.filename)) != _HERE
    ]
    libraries = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    own = [f for f in frames if not f.filename.startswith(libraries)]
    return own or frames


def one_line(error: BaseException, limit: int = 300) -> str:
    """`Type: first line of the message`."""
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _close(word: str, words: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(words), 3, 0.6)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def _kind(obj: object) -> str:
    return "None" if obj is None else f"{type(obj).__name__} object"


def _short(path: str) -> str:
    """A path as short as it can be typed from here."""
    relative = os.path.relpath(path) if os.path.isabs(path) else path
    return relative if len(relative) < len(path) else path


def _dtype_name(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _printable(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments that can leave the process: what is not plain data by its repr."""
    plain = (bool, int, float, str, type(None))
    return {k: v if isinstance(v, plain) else repr(v) for k, v in values.items()}


def _on_path(folder: str) -> None:
    if folder not in sys.path and not (folder == os.getcwd() and "" in sys.path):
        sys.path.insert(0, folder)
