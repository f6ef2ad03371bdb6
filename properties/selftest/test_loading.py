"""Loading: every way to name a kernel, and one line for everything that can be wrong."""

from __future__ import annotations

import functools
import hashlib
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from flashcheck import loading
from flashcheck.kernel import Kernel, TargetError
from flashcheck.loading import describe, load

SDPA = "torch.nn.functional:scaled_dot_product_attention"


@pytest.fixture(autouse=True)
def _restored_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    file = folder / name
    file.write_text(text)
    return str(file)


def refusal(spec: str) -> str:
    with pytest.raises(TargetError) as caught:
        load(spec)
    text = str(caught.value)
    assert text
    assert "\n" not in text
    return text


def test_file(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text("answer = 42\n")
    text = "import beside_it\n\ndef attn(q, k, v, scale=None, *, is_causal):\n    return q\n"
    path = write(tmp_path, text)
    kernel, target = load(f"{path}:attn")
    assert callable(kernel.fn)
    assert kernel.fn(1, 2, 3, is_causal=False) == 1
    assert target.name == "mine.py:attn"
    assert target.spec == f"{path}:attn"
    assert target.options == ("scale", "is_causal")
    assert target.required == ("is_causal",)
    assert not target.hidden
    assert (target.file, target.line) == (path, 3)
    assert target.source == hashlib.sha256(text.encode()).hexdigest()
    assert pickle.loads(pickle.dumps(target)) == target


def test_file_beside_one_of_the_same_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, f"def attn(q, k, v): return {name!r}\n")
    got = [load(f"{tmp_path / n / 'mine.py'}:attn")[0].fn(0, 0, 0) for n in "ab"]
    assert got == ["a", "b"]


def test_kernel_object_and_dotted_attribute(tmp_path: Path) -> None:
    text = """
import torch
from flashcheck.kernel import Kernel
def attn(q, k, v, **kw): return q
class box:
    kernel = Kernel(attn, name="boxed", options=("is_causal",), dtypes=[torch.float16],
                    configs={"one": {"fn": attn}})
"""
    kernel, target = load(write(tmp_path, text) + ":box.kernel")
    assert target.name == "boxed"
    assert target.options == ("is_causal",)
    assert not target.hidden
    assert target.kernel.dtypes == ["float16"]
    assert target.configs == ("one",)
    assert kernel.configs is not None
    assert callable(kernel.configs["one"]["fn"])
    pickle.dumps(target)


def test_module_and_well_known() -> None:
    target = load(SDPA)[1]
    assert target.name == "scaled_dot_product_attention"
    assert target.options == ("scale", "is_causal", "attn_mask", "enable_gqa")
    assert not target.hidden
    # Its signature cannot be read: the registered kernel that calls it stands for it.
    assert target.file is not None
    assert target.file.endswith("torch_sdpa.py")


def test_signatures() -> None:
    def named(q: Any, k: Any, v: Any, attn_mask: Any = None, other: int = 3) -> Any: ...
    def keywords(q: Any, k: Any, v: Any, **kw: Any) -> Any: ...
    def star(*args: Any, is_causal: bool = False) -> Any: ...
    def positional(q: Any, k: Any, v: Any, scale: Any, /) -> Any: ...

    @functools.wraps(named)
    def wrapped(*args: Any, **kw: Any) -> Any: ...

    class Compiled:
        def __call__(self, *args: Any, **kw: Any) -> Any: ...

    def seen(obj: object) -> tuple[tuple[str, ...], bool]:
        target = describe(obj)[1]
        return target.options, target.hidden

    assert seen(named) == (("attn_mask",), False)
    assert seen(wrapped) == (("attn_mask",), False)
    assert seen(keywords) == ((), True)
    assert seen(star) == (("is_causal",), False)
    assert seen(Compiled()) == ((), True)
    assert seen(functools.partial(named, other=4)) == (("attn_mask",), False)
    assert seen(functools.partial(keywords, a=1)) == ((), True)
    assert seen(torch.compile(named, backend="eager")) == (("attn_mask",), False)
    both = ("scale", "softcap")
    assert seen(Kernel(keywords, options=both)) == (both, False)
    with pytest.raises(TargetError, match="scale"):
        describe(positional)


def test_where_a_wrapped_function_is() -> None:
    def inner(q: Any, k: Any, v: Any) -> Any: ...

    line = inner.__code__.co_firstlineno
    for fn in (inner, functools.partial(inner), torch.compile(inner, backend="eager")):
        target = describe(fn)[1]
        assert (target.file, target.line) == (__file__, line)


def test_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    names = loading.registered()
    assert "faults" not in names
    assert not any(n.startswith("_") for n in names)
    module = ModuleType("flashcheck.kernels.demo")
    vars(module)["kernel"] = Kernel(lambda q, k, v: q)
    vars(module)["variants"] = {"fast": Kernel(lambda q, k, v, scale=None: q)}
    monkeypatch.setitem(sys.modules, "flashcheck.kernels.demo", module)
    monkeypatch.setattr(loading, "registered", lambda: ("demo",))
    assert load("demo")[1].name == "demo"
    assert load("demo")[1].options == ()
    assert load("demo[fast]")[1].name == "demo[fast]"
    assert load("demo[fast]")[1].options == ("scale",)
    assert "did you mean fast?" in refusal("demo[fst]")
    text = refusal("dmeo")
    assert "did you mean demo?" in text
    assert "registered: demo" in refusal("quite_another")
    assert "did you mean my.pkg:attn?" in refusal("my.pkg.attn")


def test_refusals_of_files(tmp_path: Path) -> None:
    good = write(tmp_path, "def attention(q, k, v): return q\nx = 3\nclass K: pass\n")
    assert "no such file" in refusal(f"{tmp_path}/absent.py:f")
    assert "did you mean mine.py?" in refusal(f"{tmp_path}/mime.py:f")
    assert "there is no folder" in refusal(f"{tmp_path}/no/mine.py:f")
    assert "not a Python file" in refusal(f"{tmp_path}:f")
    assert "it defines attention" in refusal(good)
    assert "it defines attention" in refusal(good + ":")
    assert "did you mean attention?" in refusal(good + ":atention")
    assert "it has attention" in refusal(good + ":zzz")
    assert "int object" in refusal(good + ":x")
    assert "is a class" in refusal(good + ":K")

    def broken(text: str) -> str:
        return refusal(write(tmp_path, text, "broken.py") + ":f")

    assert "ZeroDivisionError" in broken("\nx = 1 / 0\n")
    assert "broken.py:2" in broken("\n1 / 0\n")
    assert "SyntaxError" in broken("def f(:\n")
    assert "broken.py:1" in broken("def f(:\n")
    text = broken("import nothing_of_that_name\n")
    assert "nothing_of_that_name" in text
    assert "broken.py:1" in text
    assert "SystemExit" in broken("import sys\nsys.exit(3)\n")
    assert "package.module:attribute" in broken("from . import x\n")
    assert "two lines" in broken("raise ValueError('two lines\\nof it')\n")
    assert "broken.py:2" in broken("import numpy\nnumpy.zeros(-1)\n")
    assert "numpy.zeros" not in broken("def f(q, k): pass\n")
    assert "block_size" in broken("def f(q, k, v, block_size): pass\n")
    assert "too many positional" in broken("def f(): pass\n")
    kernel = "from flashcheck.kernel import Kernel\nf = Kernel({})\n"
    assert "cannot be called" in broken(kernel.format("3"))
    assert "'bhsd', 'bshd'" in broken(kernel.format("print, layout='bsdh'"))
    options = "lambda q, k, v: q, options=['is_casual']"
    assert "did you mean is_causal?" in broken(kernel.format(options))


def test_refusals_of_modules() -> None:
    assert "no module 'not_there'" in refusal("not_there:f")
    assert "no module 'torch.not_there' in" not in refusal("torch.not_there:f")
    assert "no module 'torch.not_there'" in refusal("torch.not_there.deeper:f")
    assert "no module" in refusal(":f")
    assert "no attribute" in refusal("torch:")
    assert "not a module's name" in refusal("a b:f")
    assert "did you mean scaled_dot_product_attention?" in refusal(SDPA[:-1])


def test_options_that_are_named_or_declared() -> None:
    """Those of the signature, or those that are declared instead."""

    def windowed(query, key, value, *, window_size=(-1, -1), sinks=None):  # type: ignore[no-untyped-def]
        return query

    _, target = describe(windowed)
    assert target.options == ("window_size", "sinks")
    _, target = describe(Kernel(windowed, options=("scale", "num_splits")))
    assert target.options == ("scale", "num_splits")
