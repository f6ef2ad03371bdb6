"""float8 kernels, and what comes before: quantization to float8, and the rotation of q and k."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcheck
from flashcheck.formats import FLOAT8
from flashcheck.inputs import DESCALES
from flashcheck.interpreter import faithful
from flashcheck.law import Subject, laws
from flashcheck.openings import openings
from flashcheck.probe import probe
from flashcheck.strategies import Space
from flashcheck.verdict import Verdict
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

float8 = import_module("flashcheck.kernels.fp32_float8")
on_triton = import_module("flashcheck.kernels.triton_float8")
hadamard = import_module("flashcheck.kernels.hadamard")
quantization = import_module("flashcheck.kernels.quantization")
AGREEMENT = laws()[0]
E4 = torch.float8_e4m3fn
BLOCKS = (float8.DESCALE_M, float8.DESCALE_N, float8.DESCALE_N)
Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _drawn(seed: int, channels: float = 1.0, tokens: int = 75) -> Tensors:
    """q, k, v [2, 2, tokens, 64] in float64; 2 channels of q and k are so many times as large."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, 2, 2, tokens, 64, generator=g, dtype=torch.float64)
    size = torch.ones(64, dtype=torch.float64)
    size[[5, 40]] = channels
    return q * size, k * size, v


def _exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


# -- rotation ------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 8, 64, 256])
def test_a_rotation_is_orthogonal_and_that_of_hadamard(n: int) -> None:
    signs = hadamard.random_signs(n, seed=n)
    r = hadamard.rotated(torch.eye(n, dtype=torch.float64), signs)
    assert (r @ r.mT - torch.eye(n)).abs().max() <= n * 2.0**-53
    expected = torch.ones(1, 1, dtype=torch.float64)
    while len(expected) < n:
        expected = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]).double(), expected)
    assert (r - signs[:, None] * expected / n**0.5).abs().max() <= 2.0**-53


def test_scores_are_those_of_q_and_k_that_were_not_rotated() -> None:
    q, k, _ = _drawn(0, channels=30.0)
    signs = hadamard.random_signs(64)
    moved = hadamard.rotated(q, signs) @ hadamard.rotated(k, signs).mT
    # 6 additions, a division and a product for each of q and k, then 64 products and sums.
    u = 2.0**-53
    assert ((moved - q @ k.mT).abs() <= 90 * u * 64 * q.abs().amax() * k.abs().amax()).all()


@pytest.mark.parametrize("n", [0, 3, 48])
def test_other_sizes_have_no_rotation(n: int) -> None:
    with pytest.raises(ValueError, match=f"no rotation of {n} channels"):
        hadamard.rotated(torch.zeros(2, n), torch.ones(n))


def _error(kernel: Any, seed: int, channels: float, per: str, rotated: bool) -> float:
    drawn = _drawn(seed, channels)
    q, k, v = drawn
    if rotated:
        signs = hadamard.random_signs(64, seed)
        q, k = hadamard.rotated(q, signs), hadamard.rotated(k, signs)
    made = [quantization.quantized(x, E4, per, n) for x, n in zip((q, k, v), BLOCKS, strict=True)]
    (q8, a), (k8, b), (v8, c) = made
    with faithful():
        out, _ = kernel.attention(q8, k8, v8, q_descale=a, k_descale=b, v_descale=c)
    return float((out.double() - _exact(*drawn)).square().mean().sqrt())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("per", ["tensor", "head", "block"])
def test_a_rotation_halves_the_error_where_channels_stand_out(per: str, seed: int) -> None:
    with_it, without = (_error(float8, seed, 10.0, per, rotated) for rotated in (True, False))
    assert with_it < without / 2


def test_a_rotation_halves_the_error_in_triton() -> None:
    with_it, without = (_error(on_triton, 0, 10.0, "block", rotated) for rotated in (True, False))
    assert with_it < without / 2


# -- quantization --------------------------------------------------------------------------


@pytest.mark.parametrize("per", ["tensor", "head", "block"])
@pytest.mark.parametrize("dtype", [E4, torch.float8_e5m2])
def test_quantized_times_its_factor_is_near(dtype: torch.dtype, per: str) -> None:
    x = _drawn(1)[0] * torch.tensor([1.0, 2.0**9])[:, None, None]
    x[0, 0, :16] = 0
    made, factor = quantization.quantized(x, dtype, per, 16)
    assert factor.dtype == torch.float32
    assert factor.shape == ((2, 2, 5) if per == "block" else (2, 2))
    info = torch.finfo(dtype)
    # Half a unit, and half the smallest subnormal number below the normal ones; a factor's own
    # rounding cuts the largest.
    each = quantization.by_row(factor, x.shape[2], 16).double()
    error = (quantization.restored(made, factor, 16) - x).abs()
    assert (error <= x.abs() * (info.eps / 2 + 2.0**-23) + each * info.tiny * info.eps / 2).all()
    largest = made.float().abs()
    assert largest.isfinite().all()
    assert largest.max() == info.max


# -- the kernel ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [E4, torch.float8_e5m2])
@pytest.mark.parametrize("per", ["head", "block"])
def test_within_the_bound_on_what_a_quantizer_makes(per: str, dtype: torch.dtype) -> None:
    made = [
        quantization.quantized(x, dtype, per, n)
        for x, n in zip(_drawn(2, 10.0), BLOCKS, strict=True)
    ]
    q, k, v = (x for x, _ in made)
    factors = dict(zip(DESCALES, (f for _, f in made), strict=True))
    x = flashcheck.inputs_of(q, k, v, descale_block=BLOCKS[:2], **factors)
    for out_dtype in (torch.bfloat16, torch.float16):
        for splits in (1, 3):
            result = float8.attention(q, k, v, **factors, out_dtype=out_dtype, num_splits=splits)
            flashcheck.assert_within_bound(result, x, contract=float8.kernel.contract)


@pytest.mark.parametrize("dtype", [E4, torch.float8_e5m2])
@pytest.mark.parametrize("per", ["head", "block"])
def test_triton_is_within_the_bound_on_what_a_quantizer_makes(per: str, dtype: torch.dtype) -> None:
    blocks = (on_triton.DESCALE_M, on_triton.DESCALE_N, on_triton.DESCALE_N)
    made = [
        quantization.quantized(x, dtype, per, n)
        for x, n in zip(_drawn(2, 10.0), blocks, strict=True)
    ]
    q, k, v = (x for x, _ in made)
    factors = dict(zip(DESCALES, (f for _, f in made), strict=True))
    x = flashcheck.inputs_of(q, k, v, descale_block=blocks[:2], **factors)
    for options in on_triton.kernel.configs.values():
        with faithful():
            result = on_triton.attention(q, k, v, **factors, **options)
        flashcheck.assert_within_bound(result, x, contract=on_triton.kernel.contract)


@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("dtype", ["fp8e4nv", "fp8e5"])
def test_the_compiler_takes_it(
    dtype: str, masked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a Hopper GPU, where both products are on float8 tensor cores."""
    compiler: Any = import_module("triton.compiler")
    target: Any = import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    jit: Any = import_module("triton.runtime.jit")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = on_triton._attention_forward
    if not isinstance(kernel, jit.JITFunction):
        pytest.skip("TRITON_INTERPRET was set when triton was imported")
    blocks = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_D": 64, "BLOCK_DV": 32, "IS_CAUSAL": True}
    constants = (
        blocks | {"OFFSET": 8, "PER_M": 16, "PER_N": 32} | ({} if masked else {"Mask": None})
    )
    constants = {name: constants[name] for name in kernel.arg_names if name in constants}
    given = dict.fromkeys(("Q", "K", "V"), f"*{dtype}") | {"Out": "*bf16", "sm_scale": "fp32"}
    given |= dict.fromkeys(("QScale", "KScale", "VScale", "Mask", "Lse"), "*fp32")
    types = {name: given.get(name, "i32") for name in kernel.arg_names}
    types |= dict.fromkeys(constants, "constexpr")
    source = compiler.ASTSource(kernel, types, constants)
    ptx = compiler.compile(source, target=target).asm["ptx"]
    format = {"fp8e4nv": "e4m3", "fp8e5": "e5m2"}[dtype]
    assert ptx.count(f"{format}.{format}") >= 2


def test_p_saturates_where_torch_has_nan() -> None:
    x = torch.tensor([0.0, 448.0, 464.1, 1e9, 57344.0, 2.0**-10])
    assert float8.saturated(x, E4).float().tolist() == [0.0, 448.0, 448.0, 448.0, 448.0, 0.0]
    assert float8.saturated(x, torch.float8_e5m2).float().max() == 57344.0


# -- openings ------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["fp32_float8", "triton_float8"])
@pytest.mark.parametrize("dtype", FLOAT8)
def test_openings_of_float8_are_judged(dtype: str, kernel: str) -> None:
    """Factors of a tensor, a head and a block are among them, all are within the bound and say
    something; but 13 bits say nothing about scores that are large."""
    runner = InProcess(kernel)
    target = runner.start()
    space = probe(runner, target, (dtype,)).spaces[dtype]
    subject = Subject(runner, target, space)
    found = list(openings(space, 3))
    assert {p.descale_per for p in found if p.q_descale} == {"tensor", "head", "block"}
    assert all(p.descale_block == space.descale_block for p in found if p.descale_per == "block")
    verdicts = {p: AGREEMENT.check(subject.case(p)).verdict for p in found}
    vacuous = {p for p, verdict in verdicts.items() if verdict is Verdict.VACUOUS}
    assert {verdict for p, verdict in verdicts.items() if p not in vacuous} == {Verdict.PASS}
    cut = target.kernel.contract.qk == "e8m13"
    assert len(vacuous) <= (len(found) // 5 if cut else 0)


@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_without_factors_has_no_opening_with_one(seed: int) -> None:
    usual = Space(dtype="float8_e4m3fn")
    few = list(openings(usual, seed))
    assert not any(p.inputs().factors for p in few)
    assert len(few) == len(list(openings(Space(), seed))) + 3  # of weights that are small
    one = Space(dtype=usual.dtype, options=usual.options | {"v_descale"}, descale_block=(4, 8))
    more = [p.inputs() for p in openings(one, seed)]
    assert {x.factors for x in more if x.factors} == {("v_descale",)}
    assert len(more) == len(few) + 4


@pytest.mark.parametrize("kernel", ["fp32_float8", "triton_float8"])
def test_a_mask_without_infinity_is_not_probed(kernel: str) -> None:
    runner = InProcess(kernel)
    spaces = probe(runner, runner.start()).spaces
    dtypes = {name: {dtype for _, dtype, _ in space.mask_forms} for name, space in spaces.items()}
    assert dtypes == {"float8_e4m3fn": {"float32"}, "float8_e5m2": {"float32", "query"}}
