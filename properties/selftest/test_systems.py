"""What each system of the derivation is known for, beyond a right result: state, traffic, grids.

What the others are known for is tested where they are: blocks that are never loaded
(test_triton_flash), splits and their merge (test_merge, test_triton_decode), FlashAttention-4's
polynomial (test_exp2_polynomial) and incoherent processing (test_float8_kernels).
"""

from __future__ import annotations

import importlib
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashcheck.interpreter import faithful
from flashcheck.loading import load

LONG = 8192


def attention(kernel: str) -> Callable[..., Any]:
    return load(kernel)[0].fn


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def peak(kernel: str, rows: int) -> int:
    """Bytes that NumPy holds at most, for `rows` queries on LONG keys."""
    fn = attention(kernel)
    q, k, v = normal(1, 1, rows, 8), normal(1, 1, LONG, 8, seed=1), normal(1, 1, LONG, 8, seed=2)
    tracemalloc.start()
    fn(q, k, v)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most


def test_one_pass_has_state_of_a_row_and_no_scores() -> None:
    """The materialized kernel holds a score for each key of each row; the online one a block."""
    scores = 4 * LONG * 256  # float32
    assert peak("numpy_naive", 512) - peak("numpy_naive", 256) >= scores
    assert peak("numpy_online", 512) - peak("numpy_online", 256) < scores / 10


def test_one_pass_reads_each_key_and_value_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory would not show a pass for the maxima and another for the sums."""
    online: Any = importlib.import_module("flashcheck.kernels.numpy_online")
    to_array, reads = online.to_array, list[tuple[int, int, int]]()

    class Counted(np.ndarray[Any, Any]):
        def __getitem__(self, index: Any) -> Any:
            if self.shape[-2:-1] == (100,) and isinstance(index, tuple):
                keys = index[2]
                reads.append((self.shape[-1], keys.start, keys.stop))
            return super().__getitem__(index)

    monkeypatch.setattr(online, "to_array", lambda tensor: to_array(tensor).view(Counted))
    online.attention(normal(1, 1, 40, 8), normal(1, 1, 100, 8), normal(1, 1, 100, 4), BLOCK_N=32)
    blocks = [(0, 32), (32, 64), (64, 96), (96, 100)]
    assert sorted(reads) == [(channels, *block) for channels in (4, 8) for block in blocks]


@pytest.mark.parametrize("kernel", ["fp32_backward", "numpy_backward", "triton_backward"])
def test_backward_keeps_one_number_a_query(kernel: str) -> None:
    """Beside q, k, v and out: lse, from which the weights are recomputed."""
    q, k, v = (normal(1, 2, n, 16, seed=n).requires_grad_() for n in (33, 48, 48))
    kept: dict[int, torch.Size] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.data_ptr()] = tensor.shape
        return tensor

    with faithful(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = attention(kernel)(q, k, v)
        out = out[0] if isinstance(out, tuple) else out
        node: Any = out.grad_fn
        # What a node holds beside what it saves would be missed by the hooks.
        held = {**vars(node), **vars(node).get("options", {})}
        for tensor in (x for x in held.values() if isinstance(x, torch.Tensor)):
            pack(tensor)
    extra = Counter(kept.values()) - Counter(t.shape for t in (q, k, v, out))
    assert extra == Counter({torch.Size((1, 2, 33)): 1})


class _Divisions(TorchDispatchMode):
    """Elements of each result of a division."""

    elements: list[int]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket is torch.ops.aten.div:
            self.elements.append(result.numel())
        return result


@pytest.mark.parametrize("len_k", [16, 64, 320])
def test_the_accumulator_is_divided_once(len_k: int) -> None:
    """FlashAttention-2: fewer operations beside products, however many blocks there are."""
    q, k, v = normal(1, 1, 40, 8), normal(1, 1, len_k, 8, seed=1), normal(1, 1, len_k, 8, seed=2)
    mode: Any = _Divisions  # torch does not type it
    divisions = mode()
    divisions.elements = []
    with divisions:
        attention("fp32_stats")(q, k, v, BLOCK_M=16, BLOCK_N=16)
    assert sum(divisions.elements) == q.numel()


def test_programs_are_parallel_over_the_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlashAttention-2: one program for each block of queries of each head."""
    flash: Any = importlib.import_module("flashcheck.kernels.triton_flash")
    grids: list[int] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid[0])
            return lambda *args, **options: None

    monkeypatch.setattr(flash, "_attention_forward", Recorder())
    for len_q in (16, 17, 160):
        q = torch.zeros(2, 3, len_q, 16)
        flash.attention(q, q, q, BLOCK_M=16, BLOCK_N=16)
    assert grids == [6, 12, 60]
