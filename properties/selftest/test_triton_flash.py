"""triton_flash, interpreted on a CPU, against the definition in float64.

A coarse check that it computes attention at all, with every option and any strides; the gate
is the judge. What the interpreter cannot see is looked at here: the grid, the loads that a
causal mask or a window saves, and whether the compiler takes the source.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcheck
from flashcheck import interpreter
from flashcheck.formats import FORMATS

triton = pytest.importorskip("triton")

tl: Any = importlib.import_module("triton.language")
flash: Any = importlib.import_module("flashcheck.kernels.triton_flash")
polynomial: Any = importlib.import_module("flashcheck.kernels.exp2_polynomial")
tanh, exp2 = flash.tanh, flash.exp2
INF = math.inf
SMALL = {"BLOCK_M": 16, "BLOCK_N": 16}
WIDE = {"BLOCK_M": 32, "BLOCK_N": 64}
TALL = {"BLOCK_M": 64, "BLOCK_N": 32}
LARGE = {"BLOCK_M": 128, "BLOCK_N": 64}


def attend(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with interpreter.faithful():
        out, lse = flash.attention(*args, **options)
    return out, lse


def tensors(
    dtype: torch.dtype = torch.float32, *, B: int = 1, H: int = 1, Hkv: int | None = None,
    Lq: int = 20, Lk: int = 20, D: int = 16, Dv: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    g = torch.Generator().manual_seed(7)
    Hkv, Dv = Hkv or H, Dv or D
    shapes = (B, H, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv)
    q, k, v = (torch.randn(*shape, generator=g).to(dtype) for shape in shapes)
    return q, k, v


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    config: dict[str, int] = SMALL,
    **call: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the kernel, compare it with the definition, and return its result."""
    out, lse = attend(q, k, v, **call, **config)
    want, want_lse, size = definition(q, k, v, **call)
    fmt = FORMATS[str(q.dtype).removeprefix("torch.")]
    slack = 2.0**-24 * (4 * size + 4 * (k.shape[2] + q.shape[3]) + 16)
    largest = v.double().abs().amax(2, keepdim=True) if v.shape[2] else torch.zeros(1)
    if (group := q.shape[1] // v.shape[1]) > 1 and v.shape[2]:
        largest = largest.repeat_interleave(group, 1)
    bound = (3 * fmt.unit_roundoff + 2 * slack) * largest + 200 * fmt.min_subnormal
    assert (out.dtype, out.shape) == (q.dtype, want.shape)
    assert (lse.dtype, lse.shape) == (torch.float32, want_lse.shape)
    assert ((out.double() - want).abs() <= bound).all()
    assert torch.equal(torch.isneginf(lse), torch.isneginf(want_lse))
    error = torch.where(torch.isneginf(want_lse), 0.0, lse.double() - want_lse).abs()
    assert (error <= slack + 2.0**-24 * want_lse.abs().nan_to_num(posinf=0)).all()
    return out, lse


def definition(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
    attn_mask: torch.Tensor | None = None, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None, sinks: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, float]:  # fmt: skip
    """out, lse and the largest magnitude that rounds a score, in float64."""
    q, k, v = query.double(), key.double(), value.double()
    head = torch.arange(q.shape[1]) // (q.shape[1] // k.shape[1] if enable_gqa else 1)
    k, v = k[:, head], v[:, head]
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = torch.einsum("bhid,bhjd->bhij", q, k) * factor
    size = torch.einsum("bhid,bhjd->bhij", q.abs(), k.abs()) * abs(factor)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
        size += 4 * softcap  # tanh is made of exp: its error is absolute
    offset = torch.arange(k.shape[2]) - torch.arange(q.shape[2])[:, None] + q.shape[2] - k.shape[2]
    if alibi_slopes is not None:
        bias = alibi_slopes.double()[:, None, None] * offset.abs()
        s, size = s - bias, size + bias
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        s = torch.where(attn_mask, s, -INF)
    elif attn_mask is not None:
        s = s + attn_mask.double()
    if is_causal:
        s = torch.where(torch.ones(s.shape[-2:]).tril().bool(), s, -INF)
    left, right = (w if w >= 0 else 10**6 for w in window_size)
    s = torch.where((offset >= -left) & (offset <= right), s, -INF)
    sink = torch.full(s.shape[:3], -INF).double() if sinks is None else sinks.double()[:, None]
    lse = torch.logsumexp(torch.cat([s, sink.expand(s.shape[:3])[..., None]], -1), dim=-1)
    p = torch.where(torch.isneginf(s), 0, torch.exp(s - torch.nan_to_num(lse, neginf=0)[..., None]))
    return p @ v, lse, float(size.amax()) if size.numel() else 0.0


def visible(*shape: int) -> torch.Tensor:
    """A bool mask: row 0 sees no key, row 1 only the last, row 2 none of the first 16."""
    seen = torch.rand(*shape, generator=torch.Generator().manual_seed(3)) < 0.7
    if len(shape) > 1:
        seen[..., 0, :] = False
        seen[..., 1, :-1], seen[..., 1, -1] = False, True
        seen[..., 2, :16] = False
    return seen


# Views that are not contiguous.
SLOPES = torch.tensor([[0.5, 0.0], [0.25, 0.0], [2.0, 0.0], [0.01, 0.0]])[:, 0]
SINKS = torch.tensor([[0.0, 9.0], [-3.0, 9.0], [8.0, 9.0], [90.0, 9.0]])[:, 0]

PROBLEMS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "one": ({"Lq": 1, "Lk": 1, "D": 1}, {}),
    "one query": ({"H": 2, "Lq": 1, "Lk": 40, "D": 16}, {"config": WIDE}),
    "ragged": ({"B": 2, "Lq": 17, "Lk": 33, "D": 24}, {}),
    "ragged, large blocks": ({"Lq": 130, "Lk": 67, "D": 40}, {"config": LARGE}),
    "head dim 2, wide v": ({"Lq": 17, "Lk": 70, "D": 2, "Dv": 40}, {"config": WIDE}),
    "narrow v": ({"Lq": 9, "Lk": 33, "D": 40, "Dv": 3}, {}),
    "causal": ({"B": 2, "H": 2, "Lq": 33, "Lk": 33, "D": 8}, {"is_causal": True}),
    "causal, wide blocks": ({"Lq": 70, "Lk": 70}, {"is_causal": True, "config": WIDE}),
    "causal, tall blocks": ({"Lq": 70, "Lk": 70}, {"is_causal": True, "config": TALL}),
    "causal, few queries": ({"Lq": 9, "Lk": 70}, {"is_causal": True}),
    "causal, few keys": ({"Lq": 70, "Lk": 9}, {"is_causal": True, "config": WIDE}),
    "grouped": ({"B": 2, "H": 6, "Hkv": 2, "Lq": 5, "Lk": 20}, {"enable_gqa": True}),
    "one head for all": ({"H": 3, "Hkv": 1, "Lq": 5, "Lk": 20}, {"enable_gqa": True}),
    "scale": ({}, {"scale": 2}),
    "negative scale": ({}, {"scale": -3.5}),
    "negative scale, causal": ({}, {"scale": -0.5, "is_causal": True}),
    "scale 0": ({"Lk": 40}, {"scale": 0.0}),
    "subnormal scale": ({}, {"scale": 1e-40}),
    "no key": ({"Lk": 0, "Dv": 5}, {}),
    "no key, causal": ({"Lk": 0}, {"is_causal": True}),
    "mask": ({"B": 2, "H": 2, "Lk": 40}, {"attn_mask": visible(20, 40)}),
    "mask of rank 1": ({"Lk": 40}, {"attn_mask": visible(40)}),
    "mask a batch": ({"B": 2, "H": 2, "Lk": 40}, {"attn_mask": visible(2, 1, 20, 40)}),
    "mask a head": ({"B": 2, "H": 2, "Lk": 40}, {"attn_mask": visible(2, 20, 40)}),
    "mask of one row": ({"B": 2, "Lk": 40}, {"attn_mask": visible(2, 1, 3, 40)[:, :, 2:]}),
    "mask, transposed": ({"Lk": 40}, {"attn_mask": visible(20, 40).T.contiguous().T}),
    "nothing visible": ({"Lk": 40}, {"attn_mask": torch.zeros(20, 40, dtype=torch.bool)}),
    "bias": ({"H": 2, "Lk": 40}, {"attn_mask": 3 * torch.randn(2, 20, 40)}),
    "bias and hiding": (
        {"Lk": 40, "D": 8},
        {"attn_mask": torch.randn(20, 40).masked_fill(~visible(20, 40), -INF), "config": WIDE},
    ),
    "window": ({"B": 2, "H": 2, "Lq": 33, "Lk": 70}, {"window_size": (16, 3), "config": WIDE}),
    "window of one": ({"Lq": 40, "Lk": 40}, {"window_size": (0, 0)}),
    "window left": ({"Lq": 70, "Lk": 70}, {"window_size": (17, -1), "config": TALL}),
    "window right": ({"Lq": 20, "Lk": 70}, {"window_size": (-1, 0)}),
    "window of few keys": ({"Lq": 70, "Lk": 9}, {"window_size": (2, 4)}),
    "window beyond int32": ({"Lk": 40}, {"window_size": (2**62, 2**31 - 1)}),
    "window, causal": ({"Lq": 40, "Lk": 40}, {"window_size": (20, 5), "is_causal": True}),
    "window, mask": ({"Lk": 90}, {"window_size": (40, 2), "attn_mask": visible(20, 90)}),
    "softcap": ({"Lk": 40}, {"softcap": 0.5, "scale": 2.0}),
    "softcap far away": ({"Lk": 40}, {"softcap": 50.0, "scale": 1e-3}),
    "softcap, bias": ({"Lk": 40}, {"softcap": 2.0, "attn_mask": 3 * torch.randn(20, 40)}),
    "slopes": ({"H": 4, "Hkv": 2, "Lk": 40}, {"enable_gqa": True, "alibi_slopes": SLOPES}),
    "sinks": ({"B": 2, "H": 4, "Lk": 40}, {"sinks": SINKS}),
    "sinks, no key": ({"H": 4, "Lk": 0}, {"sinks": SINKS}),
    "all": (
        {"B": 2, "H": 4, "Hkv": 2, "Lq": 33, "Lk": 70, "D": 8},
        {"enable_gqa": True, "alibi_slopes": SLOPES, "sinks": SINKS, "softcap": 3.0,
         "window_size": (20, 9), "attn_mask": torch.randn(33, 70), "scale": -2.0},
    ),
    "no mask on no key": ({"Lk": 0}, {"attn_mask": torch.ones(20, 0, dtype=torch.bool)}),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("label", PROBLEMS)
def test_is_attention(label: str, dtype: torch.dtype) -> None:
    shape, call = PROBLEMS[label]
    q, k, v = tensors(dtype, **shape)
    out, _ = check(q, k, v, **call)
    mask = call.get("attn_mask")
    if not k.shape[2] or (mask is not None and not mask.any()):
        assert (out == 0).all()
    if mask is not None and mask.is_floating_point():
        half = mask.to(dtype)
        check(q, k, v, **{**call, "attn_mask": half})


@pytest.mark.parametrize("config", flash.kernel.configs)
def test_configurations_agree_on_a_maximum_that_arrives_late(config: str) -> None:
    q, k, v = tensors(torch.float16, Lq=33, Lk=133)
    q, k = q.abs(), (torch.arange(133)[:, None] / 32).expand_as(k).half().contiguous()
    check(q, k, v, config=flash.kernel.configs[config])
    check(0 * q + 8, k / 64 - 6.25, v, config=flash.kernel.configs[config])  # scores near -200


def _apply(X: Any, Y: Any, N: tl.constexpr, EXP2: tl.constexpr) -> None:
    at = tl.arange(0, N)
    x = tl.load(X + at)
    y = tanh(x) if EXP2 is None else exp2(x, EXP2)
    tl.store(Y + at, y)


def elementwise(x: torch.Tensor, degree: int | None = None) -> torch.Tensor:
    """tanh of x, or 2^x by a polynomial, in float64."""
    y = torch.empty_like(x)
    terms = None if degree is None else polynomial.coefficients(degree)[::-1]
    with interpreter.faithful():
        triton.jit(_apply)[(1,)](x, y, N=x.numel(), EXP2=terms)
    return y.double()


def test_tanh() -> None:
    x = torch.cat([torch.linspace(-20, 20, 4000), torch.logspace(-45, 38, 96)])
    x = torch.cat([x, -x])
    y = elementwise(x)
    assert ((y - x.double().tanh()).abs() <= 10 * 2.0**-24).all()
    assert torch.equal(y[:4096], -y[4096:])
    assert elementwise(torch.tensor([INF, -INF])).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("degree", [1, 3, 5, 9])
def test_exp2(degree: int) -> None:
    x = torch.cat([torch.linspace(-124, 8, 4095), torch.tensor([0.0])])
    exact = x.double().exp2()
    error = ((elementwise(x, degree) - exact) / exact).abs().max()
    assert polynomial.error(degree) / 20 < error <= polynomial.error(degree)
    assert (elementwise(torch.tensor([-INF, -1e30, -300.0, -124.01]), degree) == 0).all()


@pytest.mark.parametrize("variant", ["exp2_poly3", "exp2_poly5", "lazy_rescale"])
def test_variants(variant: str) -> None:
    """What a variant computes is attention within what its contract declares."""
    kernel = flash.variants[variant]
    q, k, v = tensors(torch.float16, H=2, Lq=33, Lk=133)
    q, k = 4 * q.abs(), (torch.arange(133)[:, None] / 48).expand_as(k).half().contiguous()
    plain, plain_lse = attend(q, k, v, sinks=SINKS[:2], **SMALL)
    options = kernel.configs["16x16"]
    out, lse = attend(q, k, v, sinks=SINKS[:2], **options)
    slack = (kernel.contract.exp_error or 0.0) + 2.0**-20
    assert not torch.equal(lse, plain_lse)
    assert (lse - plain_lse).abs().max() <= slack * (1 + plain_lse.abs().max())
    assert (out - plain).abs().max() <= (2.0**-10 + 2 * slack) * v.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_polynomial_of_degree_3_is_enough_in_half_precision(dtype: torch.dtype) -> None:
    """Off by 1.0e-4: below a quarter of a roundoff of half precision, beyond 8 of float32."""
    q, k, v = tensors(dtype, Lq=33, Lk=40)
    inputs = flashcheck.inputs_of(q, k, v)
    result = attend(q, k, v, exp_degree=3, **SMALL)
    variant = flash.variants["exp2_poly3"]
    flashcheck.assert_within_bound(result, inputs, contract=variant.contract)
    if dtype == torch.float32:
        with pytest.raises(flashcheck.CheckFailed):
            flashcheck.assert_within_bound(result, inputs)
    else:
        flashcheck.assert_within_bound(result, inputs)


def test_strides_do_not_matter() -> None:
    q, k, v = tensors(torch.float16, B=2, H=2, Lq=20, Lk=37, D=24, Dv=16)
    want = check(q, k, v)

    def longer(x: torch.Tensor) -> torch.Tensor:
        """Rows and channels that are longer in memory, NaN where they do not count."""
        memory = x.new_full((*x.shape[:2], x.shape[2] + 3, x.shape[3] + 5), math.nan)
        view = memory[:, :, 1:-2, 3:-2]
        return view.copy_(x)

    for change in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
        lambda x: x.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
        longer,
    ):
        got = attend(*map(change, (q, k, v)), **SMALL)
        assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_expanded_tensors(axis: int) -> None:
    q, k, v = tensors(B=2, H=2, Lq=20, Lk=37)
    q, k, v = (x.narrow(axis, 0, 1).expand(x.shape) for x in (q, k, v))
    before = [x.clone() for x in (q, k, v)]
    check(q, k, v)
    assert all(map(torch.equal, (q, k, v), before))


def test_what_memory_holds_elsewhere_does_not_matter() -> None:
    memory = torch.full((3, 60, 20), math.nan)
    q, k, v = (x[None, None, 7:40, 2:18].normal_() for x in memory)
    mask = torch.full((40, 50), math.nan)[3:36, 5:38].fill_(0.5)
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
        check(q, k, v, **options)
        check(q, k, v, config=WIDE, **options)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is loaded: q once a program, k and v once a block."""
    native: Any = importlib.import_module("triton.runtime.interpreter")._interpreter
    seen: list[Any] = []
    load = native.load

    def counted(*args: Any) -> Any:
        seen.append(args)
        return load(*args)

    monkeypatch.setattr(native, "load", counted)
    return seen


def test_blocks_beyond_the_diagonal_are_never_loaded(loads: list[Any]) -> None:
    for len_q, len_k, blocks in ((48, 48, 6), (48, 200, 6), (48, 20, 5), (33, 33, 6), (9, 100, 1)):
        q, k, v = tensors(Lq=len_q, Lk=len_k)
        k[:, :, len_q:] = v[:, :, len_q:] = 2.0**16  # hidden, but in memory beside the visible
        k[:, :, 64:] = v[:, :, 64:] = math.nan
        loads.clear()
        out, _ = attend(q, k, v, is_causal=True, **SMALL)
        assert out.isfinite().all()
        assert len(loads) == -(-len_q // 16) + 2 * blocks


@pytest.mark.parametrize(
    ("len_q", "len_k", "window", "blocks"),
    [
        # Blocks of 16 queries see 16 places, and those that a window adds.
        (48, 48, (0, 0), [(0,), (1,), (2,)]),
        (48, 48, (16, 0), [(0,), (0, 1), (1, 2)]),
        (48, 48, (17, 0), [(0,), (0, 1), (0, 1, 2)]),
        (48, 48, (0, 1), [(0, 1), (1, 2), (2,)]),
        (16, 80, (3, -1), [(3, 4)]),
        (16, 80, (-1, 0), [(0, 1, 2, 3, 4)]),
        (9, 80, (0, 0), [(4,)]),
        (1, 80, (20, 0), [(3, 4)]),
        (48, 16, (0, 0), [(), (), (0,)]),
        (40, 10, (5, 2), [(), (0,), (0,)]),
    ],
)
def test_blocks_outside_the_window_are_never_loaded(
    len_q: int, len_k: int, window: tuple[int, int], blocks: list[tuple[int, ...]],
    loads: list[Any],
) -> None:  # fmt: skip
    q, k, v = tensors(Lq=len_q, Lk=len_k)
    for block in {*range(len_k // 16)} - {b for row in blocks for b in row}:
        k[:, :, 16 * block : 16 * block + 16] = v[:, :, 16 * block : 16 * block + 16] = math.nan
    out, _ = attend(q, k, v, window_size=window, **SMALL)
    assert out.isfinite().all()
    assert len(loads) == len(blocks) + 2 * sum(map(len, blocks))
    loads.clear()
    mask = torch.ones(len_q, len_k, dtype=torch.bool)
    masked, _ = attend(q, k, v, window_size=window, attn_mask=mask, **SMALL)
    assert torch.equal(masked, out)
    assert len(loads) == len(blocks) + 3 * sum(map(len, blocks))


def test_a_grid_takes_any_number_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    grids: list[tuple[int, ...]] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *args, **options: None

    monkeypatch.setattr(flash, "_attention_forward", Recorder())
    q = torch.zeros(1, 1, 1, 16).expand(300, 300, 40, 16)
    flash.attention(q, q, q, **SMALL)
    assert grids == [(300 * 300 * 3,)]  # CUDA's first axis ends at 2^31 - 1, the others at 65,535


OPTIONS: dict[str, dict[str, str]] = {
    "plain": {},
    "float32 mask": {"Mask": "*fp32"},
    "bool mask": {"Mask": "*i1"},
    "window": {"window_left": "i32", "window_right": "i32"},
    "all": {
        "Mask": "*fp32", "Slopes": "*fp32", "Sinks": "*fp32", "softcap": "fp32",
        "window_left": "i32",
    },
    "FlashAttention-4's": {},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # Triton's own, about its defaults
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("aligned", [True, False])
def test_the_compiler_takes_it(
    aligned: bool, options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler: Any = importlib.import_module("triton.compiler")
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    jit: Any = importlib.import_module("triton.runtime.jit")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = flash._attention_forward if aligned else flash._attention_forward_unaligned
    if not isinstance(kernel, jit.JITFunction):
        pytest.skip("TRITON_INTERPRET was set when triton was imported")
    constants: dict[str, Any] = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16, "BLOCK_DV": 32}
    constants |= {"IS_CAUSAL": options == "plain", "EXP2": None, "RESCALE_THRESHOLD": 0.0}
    if options == "FlashAttention-4's":
        constants |= {"EXP2": (0.5, 1.0), "RESCALE_THRESHOLD": 8.0}
    optional = ("Mask", "Slopes", "Sinks", "softcap", "window_left", "window_right")
    constants |= {name: None for name in optional if name not in OPTIONS[options]}
    types = dict.fromkeys(kernel.arg_names, "i32")
    types |= dict.fromkeys(("Q", "K", "V", "Out"), "*bf16")
    types |= {"Lse": "*fp32", "sm_scale": "fp32"} | OPTIONS[options]
    if aligned:  # Triton makes constants of integers that are 1
        constants |= dict.fromkeys(("stride_qd", "stride_kd", "stride_vd"), 1)
    types |= dict.fromkeys(constants, "constexpr")
    source = compiler.ASTSource(kernel, types, constants)
    assert "mma.sync" in compiler.compile(source, target=target).asm["ptx"]
