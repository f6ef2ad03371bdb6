"""triton_decode, interpreted on a CPU: splits, empty and hidden ones, and what is loaded.

The gate is the judge; problems here are those that single out splits and rows of a group.
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

pytest.importorskip("triton")

decode: Any = importlib.import_module("flashcheck.kernels.triton_decode")
INF = math.inf
SMALL = {"BLOCK_M": 16, "BLOCK_N": 16}
WIDE = {"BLOCK_M": 16, "BLOCK_N": 32}


def attend(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    with interpreter.faithful():
        out, lse = decode.attention(*args, **options)
    return out, lse


def tensors(
    dtype: torch.dtype = torch.float32, *, B: int = 1, H: int = 1, Hkv: int | None = None,
    Lq: int = 1, Lk: int = 70, D: int = 16, Dv: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    g = torch.Generator().manual_seed(5)
    shapes = (B, H, Lq, D), (B, Hkv or H, Lk, D), (B, Hkv or H, Lk, Dv or D)
    q, k, v = (torch.randn(*shape, generator=g).to(dtype) for shape in shapes)
    return q, k, v


def hidden(*keys: slice) -> torch.Tensor:
    seen = torch.ones(1, 70, dtype=torch.bool)
    for part in keys:
        seen[:, part] = False
    return seen


SLOPES, SINKS = torch.tensor([0.5, 0.25, 2.0, 0.01]), torch.tensor([0.0, -3.0, 8.0, 90.0])

PROBLEMS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "one": ({"Lk": 1, "D": 1}, {}),
    "no key": ({"Lk": 0, "H": 2}, {}),
    "no key, sinks": ({"Lk": 0, "H": 4}, {"sinks": SINKS}),
    "batches": ({"B": 3, "H": 2, "D": 24, "Dv": 5}, {}),
    "grouped": ({"B": 2, "H": 6, "Hkv": 2}, {"enable_gqa": True}),
    "more heads than rows": ({"H": 20, "Hkv": 1}, {"enable_gqa": True}),
    "group across blocks": ({"H": 6, "Hkv": 2, "Lq": 7}, {"enable_gqa": True}),
    "many queries": ({"H": 3, "Hkv": 1, "Lq": 33}, {"enable_gqa": True}),
    "causal": (
        {"H": 3, "Hkv": 1, "Lq": 33, "Lk": 33},
        {"enable_gqa": True, "is_causal": True},
    ),
    "window": ({"H": 4, "Hkv": 2, "Lq": 9}, {"enable_gqa": True, "window_size": (20, 1)}),
    "window and causal": ({"Lq": 40, "Lk": 40}, {"window_size": (3, 0), "is_causal": True}),
    "first split hidden": ({}, {"attn_mask": hidden(slice(0, 32))}),
    "last split hidden": ({}, {"attn_mask": hidden(slice(32, 70))}),
    "all hidden": ({}, {"attn_mask": hidden(slice(0, 70))}),
    "all hidden, sinks": ({"H": 4}, {"attn_mask": hidden(slice(0, 70)), "sinks": SINKS}),
    "sinks": ({"B": 2, "H": 4, "Hkv": 2}, {"enable_gqa": True, "sinks": SINKS}),
    "all": (
        {"B": 2, "H": 4, "Hkv": 2, "Lq": 9},
        {"enable_gqa": True, "alibi_slopes": SLOPES, "sinks": SINKS, "softcap": 3.0,
         "window_size": (50, 9), "attn_mask": torch.linspace(-4, 4, 70), "scale": -2.0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("label", PROBLEMS)
def test_is_attention_in_any_number_of_splits(label: str, dtype: torch.dtype) -> None:
    shape, options = PROBLEMS[label]
    q, k, v = tensors(dtype, **shape)
    if "attn_mask" in options:
        mask = options["attn_mask"]
        options = {**options, "attn_mask": mask.expand(q.shape[2], k.shape[2])}
    inputs = flashcheck.inputs_of(q, k, v, **options)
    for num_splits, config in ((1, SMALL), (3, SMALL), (200, SMALL), (2, WIDE)):
        result = attend(q, k, v, num_splits=num_splits, **options, **config)
        flashcheck.assert_within_bound(result, inputs)


def test_a_maximum_in_each_split() -> None:
    """Splits whose maxima lie far apart, in either order, and one that outweighs all others."""
    q, _, v = tensors(Lk=64)
    q = torch.ones_like(q)
    for levels in ([0.0, 40.0, 80.0, 120.0], [120.0, 80.0, 40.0, 0.0], [-300.0, 0.0, -300.0, 0.0]):
        k = (torch.tensor(levels).repeat_interleave(16)[:, None] / 4).expand(1, 1, 64, 16)
        result = attend(q, k, v, num_splits=4, **SMALL)
        flashcheck.assert_within_bound(result, flashcheck.inputs_of(q, k, v))
    k = torch.full((1, 1, 64, 16), 1.0)
    result = attend(q, k, v, num_splits=4, **SMALL)
    flashcheck.assert_within_bound(result, flashcheck.inputs_of(q, k, v))


@pytest.mark.parametrize(
    ("shape", "options", "programs", "blocks", "splits"),
    [
        # The keys are read once for all heads of a group, whatever the number of splits.
        ({"H": 8, "Hkv": 1, "Lk": 64}, {"enable_gqa": True}, 1, 4, 1),
        ({"H": 8, "Hkv": 1, "Lk": 64}, {"enable_gqa": True, "num_splits": 4}, 4, 4, 4),
        ({"H": 8, "Hkv": 2, "Lk": 64}, {"enable_gqa": True, "num_splits": 2}, 4, 8, 2),
        ({"H": 8, "Hkv": 1, "Lq": 4, "Lk": 64}, {"enable_gqa": True, "num_splits": 2}, 4, 8, 2),
        # A split for each block at most; the last of three is empty.
        ({"Lk": 40}, {"num_splits": 50}, 3, 3, 3),
        ({"Lk": 64}, {"num_splits": 3}, 3, 4, 3),
        # Keys outside the window are not read, and those inside are shared by all splits.
        ({"Lk": 96}, {"window_size": (17, 0), "num_splits": 2}, 2, 2, 2),
        ({"Lk": 96}, {"window_size": (15, 0), "num_splits": 2}, 2, 1, 2),
        ({"Lq": 32, "Lk": 32}, {"is_causal": True, "num_splits": 2}, 4, 3, 2),
    ],
)
def test_loads(
    shape: dict[str, int], options: dict[str, Any], programs: int, blocks: int, splits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    native: Any = importlib.import_module("triton.runtime.interpreter")._interpreter
    loads, load = [], native.load

    def counted(*args: Any) -> Any:
        loads.append(args)
        return load(*args)

    monkeypatch.setattr(native, "load", counted)
    q, k, v = tensors(torch.float32, **shape)
    attend(q, k, v, **options, **SMALL)
    merges = -(-q.shape[1] * q.shape[2] // 16)
    # q once a program, k and v once a block, three parts of a state once a split.
    assert len(loads) == programs + 2 * blocks + 3 * merges * splits


@pytest.mark.filterwarnings("ignore")  # Triton's own, about its defaults
@pytest.mark.parametrize(
    "options",
    [(), ("Mask", "Slopes", "softcap", "window_left"), ("EndsQ", "EndsK"), ("Table", "Lengths")],
)
@pytest.mark.parametrize("aligned", [True, False])
def test_the_compiler_takes_it(
    aligned: bool, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler: Any = importlib.import_module("triton.compiler")
    target: Any = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", 90, 32)
    jit: Any = importlib.import_module("triton.runtime.jit")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    splits = decode._attention_splits if aligned else decode._attention_splits_unaligned
    if not isinstance(splits, jit.JITFunction):
        pytest.skip("TRITON_INTERPRET was set when triton was imported")
    given = {
        "Q": "*bf16", "K": "*bf16", "V": "*bf16", "Out": "*bf16", "sm_scale": "fp32",
        "softcap": "fp32", **dict.fromkeys(("M", "L", "Acc", "Lse", "Mask", "Slopes"), "*fp32"),
    }  # fmt: skip
    blocks = {"BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_D": 16, "BLOCK_DV": 32, "IS_CAUSAL": True}
    given |= dict.fromkeys(("EndsQ", "EndsK", "Table", "Lengths"), "*i32")
    optional = {"Mask", "Slopes", "softcap", "window_left", "window_right", "Sinks"}
    optional |= {"EndsQ", "EndsK", "Table", "Lengths"}
    for kernel, instruction in ((splits, "mma.sync"), (decode._merge_splits, "ex2")):
        constants = dict.fromkeys(optional - {*options}) | blocks
        if aligned and kernel is splits:  # Triton makes constants of integers that are 1
            constants |= dict.fromkeys(("stride_qd", "stride_kd", "stride_vd"), 1)
        constants = {name: constants[name] for name in kernel.arg_names if name in constants}
        types = {name: given.get(name, "i32") for name in kernel.arg_names}
        types |= dict.fromkeys(constants, "constexpr")
        source = compiler.ASTSource(kernel, types, constants)
        assert instruction in compiler.compile(source, target=target).asm["ptx"]
