"""Interpreted Triton: every conversion against torch, arithmetic, products, and the way back."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from flashcheck import interpreter, narrow
from flashcheck.inputs import Inputs
from flashcheck.loading import load
from flashcheck.worker import Call, InProcess, Worker

pytest.importorskip("triton")

HERE = Path(__file__).parent
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
FORMATS = {E4: "fp8e4nv", E5: "fp8e5", BF16: "bf16"}
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def kernels() -> Any:
    """The module of kernels, imported as a user's is: compiled, were there a GPU."""
    file = HERE / "triton_kernels.py"
    spec = importlib.util.spec_from_file_location("flashcheck_selftest_triton", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def triton(kernels: Any) -> Iterator[Any]:
    with interpreter.faithful():
        yield kernels


def every(dtype: torch.dtype) -> torch.Tensor:
    """All patterns of a format of one or two bytes."""
    if dtype in (E4, E5):
        return torch.arange(256).to(torch.uint8).view(dtype)
    return torch.arange(65536).to(torch.int16).view(dtype)


def convert(kernels: Any, x: torch.Tensor, to: torch.dtype, rounding: str | None = None) -> Any:
    size = 1 << (x.numel() - 1).bit_length()
    padded = torch.zeros(size, dtype=x.dtype)
    padded[: x.numel()] = x
    y = torch.empty(size, dtype=to)
    kernels.convert[(1,)](padded, y, size, rounding)
    return y[: x.numel()]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal as numbers, signs of zeros included, or both NaN."""
    a, b = a.to(F64), b.to(F64)
    equal = (a == b) & (torch.signbit(a) == torch.signbit(b))
    return bool((equal | (a.isnan() & b.isnan())).all())


def binary(kernels: Any, op: str, x: torch.Tensor, y: torch.Tensor, out: torch.dtype) -> Any:
    z = torch.empty(x.shape, dtype=out)
    kernels.binary[(1,)](x, y, z, x.numel(), op)
    return z


def reduce(kernels: Any, op: str, x: torch.Tensor, out: torch.dtype = F32) -> Any:
    y = torch.empty(x.shape[0], dtype=out)
    kernels.reduce[(1,)](x, y, *x.shape, op)
    return y


def dot(
    kernels: Any, a: torch.Tensor, b: torch.Tensor, precision: str = "tf32", out: torch.dtype = F32
) -> torch.Tensor:
    c = torch.empty(a.shape[0], b.shape[1], dtype=out)
    kernels.dot[(1,)](a, b, c, a.shape[0], b.shape[1], a.shape[1], precision)
    return c


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# -- conversions --------------------------------------------------------------------------


@pytest.mark.parametrize("to", [F32, F16, F64])
@pytest.mark.parametrize("dtype", [BF16, E4, E5])
def test_every_pattern_widens_exactly(triton: Any, dtype: torch.dtype, to: torch.dtype) -> None:
    assert same(convert(triton, every(dtype), to), every(dtype).to(to))


def around_bfloat16() -> torch.Tensor:
    """Every bfloat16, the point halfway to the next one, and the float32 beside both."""
    base = torch.arange(65536) << 16
    bits = torch.cat([base + d for d in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    return bits.to(torch.int32).view(F32)


def test_float32_to_bfloat16_rounds_to_nearest_even(triton: Any) -> None:
    x = around_bfloat16()
    assert same(convert(triton, x, BF16), x.to(BF16))


def test_float16_to_bfloat16_and_back(triton: Any) -> None:
    assert same(convert(triton, every(F16), BF16), every(F16).to(BF16))
    assert same(convert(triton, every(BF16), F16), every(BF16).to(F16))


def around_float8(dtype: torch.dtype) -> torch.Tensor:
    values = every(dtype).float()
    values = values[values.isfinite()].sort().values
    middle = (values[1:] + values[:-1]) / 2
    beside = [torch.nextafter(middle, torch.tensor(way)) for way in (INF, -INF)]
    return torch.cat([values, middle, *beside])


@pytest.mark.parametrize("dtype", [E4, E5])
def test_float8_rounds_to_nearest_even_and_saturates(triton: Any, dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for x in (every(F16), every(BF16), around_float8(dtype)):
        got = convert(triton, x, dtype)
        inside = x.double().abs() <= largest
        assert same(got[inside], x[inside].to(dtype))
        # cvt.rn.satfinite, where torch has NaN or infinity.
        past = x.double().abs() > largest
        assert same(got[past], torch.sign(x[past].double()) * largest)
        assert got[x.isnan()].double().isnan().all()


def test_float64_is_rounded_once(triton: Any) -> None:
    """Just above a tie between two bfloat16, by less than float32 can tell."""
    x = torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 2.0**-8 - 2.0**-40], dtype=F64)
    assert convert(triton, x, BF16).tolist() == [1 + 2.0**-7, 1.0, 1.0]
    whole = torch.tensor([2**24 + 2**16 + 1, 257], dtype=torch.int32)
    assert convert(triton, whole, BF16).tolist() == [2**24 + 2**17, 256]


def test_rounding_toward_zero(triton: Any) -> None:
    x = around_bfloat16()
    cut = (x.view(torch.int32) & -65536).view(F32)
    finite = x.isfinite()
    assert same(convert(triton, x, BF16, "rtz")[finite], cut[finite])
    past = torch.tensor([1e9, -1e9, INF, 1.2])
    assert convert(triton, past, E5, "rtz").tolist() == [57344, -57344, INF, 1.0]
    assert convert(triton, past, F16, "rtz").tolist() == [65504, -65504, INF, 1.19921875]


@pytest.mark.parametrize("name", ["fp8e4b8", "fp8e5b16"])
def test_formats_without_negative_zero(name: str) -> None:
    kind = {"fp8e4b8": torch.float8_e4m3fnuz, "fp8e5b16": torch.float8_e5m2fnuz}[name]
    x = every(F16)
    x = x[x.double().abs() <= torch.finfo(kind).max]
    bits = narrow.encode(x.numpy(), name)
    assert np.array_equal(bits, x.to(kind).view(torch.uint8).numpy())
    assert np.array_equal(narrow.decode(bits, name), x.to(kind).float().numpy())


# -- arithmetic ---------------------------------------------------------------------------

OPERATIONS: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.fmax,
    "minimum": torch.fmin,
    "where": lambda a, b: torch.where(a > b, a, b),
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "fma": lambda a, b: a.double() * b.double() + a.double(),
    "clamp": lambda a, b: torch.minimum(torch.maximum(a, -b.abs()), b.abs()),
}


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Random ones, some of far apart sizes, and special values."""
    x, y = normal(2048), normal(2048, seed=1)
    x[512:] *= torch.exp2(torch.randint(-30, 30, (1536,), generator=torch.Generator()))
    special = torch.tensor([INF, -INF, 0.0, 1.0, 1e-40, -1e-40])
    x[:36], y[:36] = special.repeat(6), special.repeat_interleave(6)
    return x.to(dtype), y.to(dtype)


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_half_arithmetic_is_float32_rounded(triton: Any, dtype: torch.dtype, op: str) -> None:
    x, y = operands(dtype)
    want = OPERATIONS[op](x.float(), y.float()).to(dtype)
    got = binary(triton, op, x, y, dtype)
    assert bool(((got == want) | (got.isnan() & want.isnan())).all())


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_half_division_is_float32(triton: Any, dtype: torch.dtype) -> None:
    x, y = operands(dtype)
    assert same(binary(triton, "div", x, y, F32), x.float() / y.float())


def test_half_comparisons(triton: Any) -> None:
    x, y = operands(BF16)
    x[100:200], y[150:300], y[400:500] = NAN, NAN, x[400:500]
    for op, function in (("less", torch.lt), ("equal", torch.eq), ("not_equal", torch.ne)):
        got = binary(triton, op, x, y, torch.int32)
        assert torch.equal(got.bool(), function(x, y))


def test_maximum_takes_the_number(triton: Any) -> None:
    x, y = torch.tensor([NAN, 1.0, NAN, 2.0]).to(BF16), torch.tensor([1.0, NAN, NAN, 1.0]).to(BF16)
    assert same(binary(triton, "maximum", x, y, BF16), torch.tensor([1.0, 1.0, NAN, 2.0]))


def test_constants_take_part_in_the_type_of_the_tensor(triton: Any) -> None:
    x, _ = operands(BF16)
    want = ((x.float() * 3).to(BF16).float() + torch.tensor(0.3).to(BF16).float()).to(BF16)
    assert same(binary(triton, "scalar", x, x, BF16), want)


# -- reductions ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F16, E5])
def test_largest_and_smallest(triton: Any, dtype: torch.dtype) -> None:
    x = normal(16, 64).to(dtype)
    assert same(reduce(triton, "max", x), x.float().amax(1))
    assert same(reduce(triton, "min", x), x.float().amin(1))
    assert torch.equal(reduce(triton, "argmax", x, torch.int64), x.float().argmax(1))
    assert same(reduce(triton, "generic", x), x.float().amax(1))


@pytest.mark.parametrize(("dtype", "digits"), [(BF16, 8), (F16, 11)])
@pytest.mark.parametrize("op", ["sum", "member_sum"])
def test_sums_of_halves_round_at_each_addition(
    triton: Any, dtype: torch.dtype, digits: int, op: str
) -> None:
    exact = torch.randint(-8, 9, (16, 16), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert same(reduce(triton, op, exact), exact.float().sum(1))
    x = normal(64, 256).to(dtype)
    got = reduce(triton, op, x, F32)
    assert torch.equal(got, got.to(dtype).float())
    error = (got.double() - x.double().sum(1)).abs()
    assert (error <= 8 * 2.0**-digits * x.double().abs().sum(1)).all()
    # One rounding at the end would be ten times better than what a GPU computes.
    assert error.pow(2).mean().sqrt() > 4 * 2.0**-digits


# -- products -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F16, E4, E5])
def test_products_are_exact_and_sums_float32(triton: Any, dtype: torch.dtype) -> None:
    a, b = normal(16, 64).to(dtype), normal(64, 32, seed=1).to(dtype)
    got = dot(triton, a, b).double()
    size = a.double().abs() @ b.double().abs()
    assert ((got - a.double() @ b.double()).abs() <= 64 * 2.0**-24 * size).all()
    whole = torch.randint(-4, 5, (16, 16), generator=torch.Generator().manual_seed(2)).to(dtype)
    assert torch.equal(dot(triton, whole, whole), whole.float() @ whole.float())


def test_float16_accumulator(triton: Any) -> None:
    """Sixteen products at a time: 2048 and sixteen of 1/16 stay 2048 when added one by one."""
    a = torch.ones(16, 64, dtype=F16)
    b = torch.full((64, 16), 1 / 16, dtype=F16)
    b[0] = 2048
    assert (dot(triton, a, b, out=F16) == 2048).all()
    assert (dot(triton, a, b) == 2048 + 63 / 16).all()


def test_float32_products_are_tf32_unless_told_otherwise(triton: Any) -> None:
    a, b = normal(32, 64), normal(64, 32, seed=1)
    exact = a.double() @ b.double()
    size = a.double().abs() @ b.double().abs()
    cut = [(x.view(torch.int32) & ~0x1FFF).view(F32) for x in (a, b)]
    tf32 = cut[0].double() @ cut[1].double()
    rounding = 64 * 2.0**-24 * size
    assert ((dot(triton, a, b).double() - tf32).abs() <= rounding).all()
    assert ((tf32 - exact).abs() > rounding).any()
    for precision, error in (("ieee", 0.0), ("tf32x3", 2.0**-20)):
        off = (dot(triton, a, b, precision).double() - exact).abs()
        assert (off <= rounding + error * size).all()


@pytest.mark.parametrize(("precision", "error"), [("bf16x3", 2.0**-14), ("bf16x6", 2.0**-21)])
def test_float32_products_from_bfloat16_parts(triton: Any, precision: str, error: float) -> None:
    ir = sys.modules["triton._C.libtriton"].ir
    if not hasattr(ir.INPUT_PRECISION, "BF16x3"):
        pytest.skip("this Triton has no such precision")
    a, b = normal(32, 64), normal(64, 32, seed=1)
    size = a.double().abs() @ b.double().abs()
    off = (dot(triton, a, b, precision).double() - a.double() @ b.double()).abs()
    assert (off <= (error + 64 * 2.0**-24) * size).all()


def test_atomic_addition(triton: Any) -> None:
    total = torch.zeros(2, dtype=BF16)
    triton.add_atomically[(1,)](torch.arange(16).to(BF16), total, 16)
    assert total.tolist() == [56.0, 64.0]


# -- launches -----------------------------------------------------------------------------


def test_a_tuned_kernel_takes_its_first_configuration(triton: Any) -> None:
    x = torch.zeros(4)
    triton.tuned[(1,)](x, 5)
    assert x.tolist() == [10.0] * 4


def test_the_kernel_raises_its_own_error(triton: Any) -> None:
    with pytest.raises(AssertionError, match="not this one") as caught:
        triton.failing[(1,)](torch.zeros(1))
    files = [Path(entry.path).name for entry in caught.traceback]
    assert "triton_kernels.py" in files


def attend(kernels: Any, dtype: torch.dtype, m: int, n: int) -> float:
    """The largest error of one head of 64 x 64 x 32."""
    q, k, v = (normal(64, 32, seed=s).to(dtype) for s in range(3))
    o = torch.empty_like(q)
    kernels.attention[(64 // m,)](q, k, v, o, 32**-0.5, 64, 32, m, n, num_warps=4)
    return float((o.double() - exact_attention(q, k, v)).abs().max())


def exact_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q.double() @ k.double().mT / q.shape[-1] ** 0.5
    return torch.softmax(scores, -1) @ v.double()


@pytest.mark.parametrize(("dtype", "error"), [(F32, 2e-3), (F16, 1e-3), (BF16, 6e-3)])
@pytest.mark.parametrize("block", [64, 16])
def test_attention(triton: Any, dtype: torch.dtype, error: float, block: int) -> None:
    assert attend(triton, dtype, block, block) < error


def test_speed(triton: Any) -> None:
    """Not a target, a guard: 10 ms a block of 16 x 16, most of it the interpreter's own."""
    attend(triton, BF16, 16, 16)
    start = time.perf_counter()
    attend(triton, BF16, 16, 16)
    assert time.perf_counter() - start < 3.0


# -- putting back -------------------------------------------------------------------------


def _attributes() -> dict[tuple[str, str], int]:
    """The identity of everything in the modules that are changed, and in their classes."""
    names = ("language", "language.core", "language.math", "runtime.interpreter", "runtime.jit")
    found: dict[tuple[str, str], int] = {}
    for module in (sys.modules[f"triton.{name}"] for name in (*names, "runtime.autotuner")):
        for name, value in list(vars(module).items()):
            found[module.__name__, name] = id(value)
            if isinstance(value, type):
                # Triton writes an inherited __repr__ out, inspect makes __annotations__.
                inside = [
                    i for i in vars(value).items() if i[0] not in ("__repr__", "__annotations__")
                ]
                found |= {(f"{module.__name__}.{name}", n): id(v) for n, v in inside}
    builder = sys.modules["triton.runtime.interpreter"].interpreter_builder
    found["builder", "options"] = id(builder.options)
    return found | {("builder", "class"): id(type(builder))}


def test_all_is_put_back() -> None:
    """In a process of its own: the fixture of this one is still at work."""
    code = f"""
import os, sys
sys.path.insert(0, {str(HERE)!r})
import torch, triton.runtime.interpreter
import triton_kernels as kernels
from properties.selftest.test_interpreter import _attributes, attend
from flashcheck import interpreter
before, variable = _attributes(), os.environ.get("TRITON_INTERPRET")
for _ in range(2):
    with interpreter.faithful():
        assert os.environ["TRITON_INTERPRET"] == "1"
        with interpreter.faithful():
            assert attend(kernels, torch.bfloat16, 32, 32) < 6e-3
        x = torch.ones(1, dtype=torch.bfloat16)
        kernels.tuned[(1,)](torch.zeros(4), 5)
    with interpreter.faithful():
        try:
            kernels.failing[(1,)](x)
        except AssertionError:
            pass
changed = {{k for k, v in _attributes().items() if before.get(k) != v}}
assert not changed and len(_attributes()) == len(before), changed
assert os.environ.get("TRITON_INTERPRET") == variable
try:
    kernels.failing[(1,)](x)
except Exception as error:
    assert variable or interpreter.hint(error) or torch.cuda.is_available(), error
"""
    environment = {k: v for k, v in os.environ.items() if k != interpreter.VARIABLE}
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent.parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_without_triton_nothing_is_imported() -> None:
    code = (
        "import sys; from flashcheck import interpreter\n"
        "with interpreter.faithful():\n    pass\n"
        "assert 'triton' not in sys.modules and 'flashcheck.semantics' not in sys.modules\n"
        "assert not any(type(f).__module__ == 'flashcheck.interpreter' for f in sys.meta_path)\n"
        "with interpreter.faithful():\n    import triton\n"
        "    assert triton.runtime.interpreter.interpreter_builder.__class__.__name__ == "
        "'FaithfulBuilder'\n"
        "assert type(triton.language.sum).__name__ == 'JITFunction'\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != interpreter.VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


# -- in the gate --------------------------------------------------------------------------

TARGET = """
import os
import torch
import triton_kernels

def attention(q, k, v, scale=None):
    if q.shape[2:] != (64, 32) or k.shape != q.shape:
        raise NotImplementedError
    o = torch.empty_like(q)
    q, k, v = (t.contiguous() for t in (q, k, v))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            triton_kernels.attention[(2,)](q[b, h], k[b, h], v[b, h], o[b, h],
                                           32**-0.5 if scale is None else scale, 64, 32, 32, 64)
    return o

def knows(q, k, v):
    assert AT_IMPORT == "1"
    return attention(q, k, v)

AT_IMPORT = os.environ.get("TRITON_INTERPRET")
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "target.py").write_text(TARGET)
    (tmp_path / "triton_kernels.py").write_text((HERE / "triton_kernels.py").read_text())
    return f"{tmp_path}/target.py:"


def inputs() -> Inputs:
    q, k, v = (np.round(normal(1, 1, 64, 32, seed=s).double().numpy() * 8) / 8 for s in range(3))
    return Inputs(q=q, k=k, v=v, dtype="bfloat16")


def test_in_a_worker_the_file_can_tell_before_it_is_imported(target: str) -> None:
    with Worker(target + "knows", "cpu") as worker:
        reply = worker.call(Call(inputs()))
        assert reply.status == "ok", reply
        given = inputs()
        q, k, v = (torch.from_numpy(x) for x in (given.q, given.k, given.v))
        assert np.abs(reply.outs[0] - exact_attention(q, k, v).numpy()).max() < 8e-3


def test_in_this_process(target: str) -> None:
    before = os.environ.get(interpreter.VARIABLE)
    with InProcess(target + "attention", "cpu") as runner:
        assert runner.call(Call(inputs())).status == "ok"
    assert os.environ.get(interpreter.VARIABLE) == before


def test_only_the_cpu_is_interpreted() -> None:
    assert interpreter.environment("cpu") == {"TRITON_INTERPRET": "1"}
    assert interpreter.environment("cuda") == interpreter.environment("cuda:1") == {}


def test_a_launch_while_the_file_is_imported_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.delenv(interpreter.VARIABLE, raising=False)
    code = "import triton\nDEVICE = triton.runtime.driver.active.get_current_device()\n"
    (tmp_path / "early.py").write_text(code + "def f(q, k, v): return q\n")
    with pytest.raises(Exception, match=r"0 active drivers.*; Triton found no GPU: on a CPU"):
        load(f"{tmp_path}/early.py:f")


def test_an_unknown_version_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, known in (("3.6.0", True), ("3.9.1+git", True), ("3.10.0", False), ("4", False)):
        monkeypatch.setattr("importlib.metadata.version", lambda _, v=version: v)
        said = interpreter.status()
        assert (said is None) == known
        assert said is None or f"triton {version} is not known to flashcheck" in said


def test_an_unknown_interpreter_stops_no_other_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise AttributeError("no GridExecutor")

    monkeypatch.setattr(interpreter, "_active", False)
    monkeypatch.setattr(interpreter, "_replacements", missing)
    with pytest.raises(AttributeError), interpreter.faithful():
        pass
    monkeypatch.setattr("importlib.metadata.version", lambda _: "3.10.0")
    with interpreter.faithful():
        pass


# -- against a GPU ------------------------------------------------------------------------


def test_any_class_may_be_in_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some have a property where others have the name of their module."""

    class Odd:
        __module__ = property(lambda self: "odd")

    module = ModuleType("odd")
    module.value = Odd()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd", module)
    assert not isinstance(type(module.value).__module__, str)
    interpreter.kernels_loaded()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_computes_the_same(kernels: Any) -> None:
    """Compiled and interpreted, from one import of one source, bit for bit."""
    x, y = operands(BF16)
    cases: list[tuple[Any, list[torch.Tensor], torch.dtype, tuple[Any, ...]]] = [
        (kernels.binary, [x, y], BF16, (2048, op)) for op in OPERATIONS
    ]
    for source in (BF16, F16, E4, E5, F32):
        values = around_bfloat16()[:4096] if source == F32 else every(source)[-4096:]
        for to in (BF16, F16, F32, E4, E5):
            if to != source and (source, to) != (E5, BF16):  # which loses infinity and NaN
                cases.append((kernels.convert, [values], to, (len(values), None)))
    for m in (16, 64):
        rows = (torch.arange(32 * m, dtype=torch.int32) * 64 + 0x3F800000).view(F32).reshape(m, 32)
        for precision in ("tf32", "tf32x3", "ieee"):
            cases.append((kernels.dot, [rows, torch.eye(32)], F32, (m, 32, 32, precision)))
    different = []
    for kernel, tensors, out, rest in cases:
        size = tensors[0].shape
        compiled, interpreted = (torch.empty(size, dtype=out, device=d) for d in ("cuda", "cpu"))
        kernel[(1,)](*(t.cuda() for t in tensors), compiled, *rest)
        with interpreter.faithful(), warnings.catch_warnings():
            kernel[(1,)](*tensors, interpreted, *rest)
        a, b = compiled.cpu().double(), interpreted.double()
        if not bool(((a == b) | (a.isnan() & b.isnan())).all()):
            different.append((kernel, tensors[0].dtype, out, rest))
    assert not different
