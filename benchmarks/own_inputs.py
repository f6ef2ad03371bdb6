"""The inputs of other projects' tests, re-created from their description: `OWN[project](dtype)`.

Shapes, distributions, seeds and masks are those that the tests are described with. What the kernel
contract cannot say is left out: dropout, ALiBi, softcap, windows, paging. Where a test is causal
and has fewer queries than keys it is aligned bottom-right; here such calls are made only with as
many queries as keys, where both alignments are the same. Batches and heads are fewer where a CPU
would take minutes, which hides no fault that depends on lengths; each such place says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from flashcheck.formats import Array
from flashcheck.inputs import Inputs, Layout

Draw = Callable[..., torch.Tensor]


def _array(t: torch.Tensor, dtype: str) -> Array:
    return np.asarray(t.to(getattr(torch, dtype)).double().numpy())


def _call(
    dtype: str,
    seed: int,
    shape: tuple[int, int, int, int, int, int],
    draw: Draw = torch.randn,
    *,
    dim_v: int | None = None,
    sizes: tuple[float, float, float] = (1.0, 1.0, 1.0),
    shift: float = 0.0,
    largest: float | None = None,
    layout: Layout = "contiguous",
    **more: Any,
) -> Inputs:
    """shape: (B, Hq, Hkv, Lq, Lk, D); q, k and v are drawn, times `sizes`, plus `shift`."""
    batch, heads, kv_heads, len_q, len_k, dim = shape
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for size, (h, length, d) in zip(
        sizes,
        ((heads, len_q, dim), (kv_heads, len_k, dim), (kv_heads, len_k, dim_v or dim)),
        strict=True,
    ):
        t = draw(batch, h, length, d, generator=generator) * size + shift
        tensors.append(_array(t if largest is None else t.clamp(-largest, largest), dtype))
    q, k, v = tensors
    return Inputs(
        dtype, q, k, v, enable_gqa=heads != kv_heads, layout=layout, **more,
    )  # fmt: skip


def flash_attention(dtype: str) -> Iterator[Inputs]:
    """randn, seed 0; the lengths and head sizes of its grid; queries, keys and values enlarged.

    Batch 1 and 2 to 6 heads where its tests have 4 and 6 to 9; lengths up to 1024 of 4224.
    """
    heads = ((2, 2), (6, 1), (6, 2))  # multi-head, multi-query, grouped
    lengths = ((113, 203), (128, 217), (1, 239), (108, 256), (97, 97), (799, 3), (256, 512),
               (512, 256), (128, 128))  # fmt: skip
    for number, (len_q, len_k) in enumerate(lengths):
        for causal in (False, True) if len_q == len_k else (False,):
            dim = (40, 59, 64, 32, 111, 128)[number % 6]
            yield _call(
                dtype, 0, (1, *heads[number % 3], len_q, len_k, dim), is_causal=causal,
                layout="transposed",
            )  # fmt: skip
    for length in (1, 2, 5, 17, 128):  # test_flash_attn_bwd_overflow
        for causal in (False, True):
            yield _call(
                dtype, 0, (2, 5, 5, length, length, 64), sizes=(5, 3, 3), is_causal=causal,
                layout="transposed",
            )  # fmt: skip
    for length in (1023, 1024):
        yield _call(dtype, 0, (1, 1, 1, length, 1024, 64), layout="transposed")
    yield _call(dtype, 0, (1, 1, 1, 1024, 1024, 64), is_causal=True, layout="transposed")


def torch_sdpa(dtype: str) -> Iterator[Inputs]:
    """randn; B 2 and H 4, D 64, lengths up to 1024 of 2048; strides swept."""
    layouts: tuple[Layout, ...] = ("contiguous", "transposed", "packed")
    for number, (len_q, len_k) in enumerate(((4, 8), (64, 64), (128, 64), (128, 128), (256, 256))):
        for causal in (False, True) if len_q == len_k else (False,):
            yield _call(
                dtype, number, (2, 4, 4, len_q, len_k, 64), is_causal=causal,
                layout=layouts[number % 3],
            )  # fmt: skip
    yield _call(dtype, 9, (2, 4, 2, 128, 128, 64), is_causal=True)
    yield _call(dtype, 10, (1, 1, 1, 1024, 1024, 64), is_causal=True)


def triton_tutorial(dtype: str) -> Iterator[Inputs]:
    """N(0, 0.5^2), seed 20, scale 0.5, its one shape (1, 2, 1024, 64), causal."""
    yield _call(
        dtype, 20, (1, 2, 2, 1024, 1024, 64), sizes=(0.5, 0.5, 0.5), scale=0.5, is_causal=True
    )


def vllm(dtype: str) -> Iterator[Inputs]:
    """randn, seed 0; lengths (1, 1328), (5, 18), (129, 463), head sizes 40 to 256, grouped.

    Not causal but where Lq = Lk; not paged; decoding lengths up to 1328 of 2011.
    """
    for heads in ((4, 4), (8, 2)):
        for number, (len_q, len_k) in enumerate(((1, 1328), (5, 18), (129, 463), (1, 463))):
            dim = (128, 40, 72, 256)[number]
            yield _call(dtype, 0, (1, *heads, len_q, len_k, dim))
        yield _call(dtype, 0, (1, *heads, 129, 129, 128), is_causal=True)


def flashinfer(dtype: str) -> Iterator[Inputs]:
    """randn, seed 0, grouped heads; and what was written by hand after bugs: raw scores below a
    finite sentinel, one valid key, rows without a key, equal scores with V of ones.
    """
    for heads in ((4, 4), (8, 2)):
        for len_q, len_k in ((1, 54), (37, 54), (17, 97), (127, 127), (54, 54)):
            yield _call(
                dtype, 0, (2, *heads, len_q, len_k, 128 if heads[0] == 4 else 64),
                is_causal=len_q == len_k,
            )  # fmt: skip
    x = _call(dtype, 0, (1, 2, 2, 1, 40, 64))
    low = x.with_(q=np.full_like(x.q, -64.0), k=np.full_like(x.k, 128.0), scale=1.0)
    yield low  # every raw score is -524288
    one = np.zeros((1, 1, 40, 40), bool)
    one[..., 7] = True
    y = _call(dtype, 0, (1, 2, 2, 40, 40, 64))
    yield y.with_(mask=one)
    none = np.ones((1, 1, 40, 40), bool)
    none[..., :33, :] = False
    yield y.with_(mask=none)
    yield y.with_(q=np.zeros_like(y.q), v=np.ones_like(y.v))


def xformers(dtype: str) -> Iterator[Inputs]:
    """randn * 3; lengths, heads and head sizes drawn, seed from the shape; causal, boolean and
    additive masks.
    """
    rng = np.random.default_rng(0)
    for number in range(16):
        kind = ("none", "causal", "bias", "hidden")[number % 4]
        len_q, len_k = (int(n) for n in rng.integers(1, 260, 2))
        if kind == "causal":
            len_k = len_q
        dim = int(rng.choice((16, 32, 64, 128)))
        shape = (int(rng.integers(1, 3)), int(rng.integers(1, 4)), len_q, len_k)
        mask = None
        if kind == "bias":
            bias = torch.randn(shape, generator=torch.Generator().manual_seed(number)) * 3
            mask = _array(bias, dtype)
        elif kind == "hidden":  # whole blocks of padding keys, as its padded masks hide them
            mask = np.broadcast_to(np.arange(len_k) < max(1, len_k - 17), (1, 1, len_q, len_k))
        yield _call(
            dtype, sum(shape) + dim, (shape[0], shape[1], shape[1], len_q, len_k, dim),
            sizes=(3, 3, 3), is_causal=kind == "causal", mask=mask,
            mask_dtype=dtype if kind == "bias" else "bool", layout="transposed",
        )  # fmt: skip


def jax(dtype: str) -> Iterator[Inputs]:
    """random.normal with fixed keys; causal, a boolean mask, a bias, grouped heads; lengths to 384
    of 1024.
    """
    for causal in (False, True):
        yield _call(dtype, 0, (2, 1, 1, 128, 128, 64), is_causal=causal)
        yield _call(dtype, 1, (2, 4, 2, 256, 256, 64), is_causal=causal)
        yield _call(dtype, 2, (1, 2, 2, 384, 384, 32), is_causal=causal)
    x = _call(dtype, 3, (2, 4, 4, 128, 256, 64))
    yield x
    generator = torch.Generator().manual_seed(4)
    yield x.with_(mask=(torch.rand(2, 4, 128, 256, generator=generator) < 0.5).numpy())
    bias = torch.randn(1, 4, 128, 256, generator=generator)
    yield x.with_(mask=_array(bias, dtype), mask_dtype=dtype, scale=0.5)


def jax_splash(dtype: str) -> Iterator[Inputs]:
    """Uniform in [0, 1), seeds 0 to 4, length 1024 of 1024 to 4096, one head, causal or a window
    made of masks.
    """
    place = np.arange(1024)
    window = (np.abs(place[:, None] - place) <= 128)[None, None]
    for seed in range(5):
        x = _call(dtype, seed, (1, 1, 1, 1024, 1024, 64), torch.rand, is_causal=seed % 2 == 0)
        yield x if x.is_causal else x.with_(mask=window)


def flashmla(dtype: str) -> Iterator[Inputs]:
    """randn / 10, at most 1: decoding with D 576 and Dv 512, prefill with D 192 and Dv 128, and a
    sequence without keys. 4 heads of 128, caches up to 1024 of 4096.
    """
    small: dict[str, Any] = {"sizes": (0.1, 0.1, 0.1), "largest": 1.0}
    for len_q, len_k in ((1, 140), (2, 640), (1, 1024)):
        yield _call(dtype, 0, (1, 4, 1, len_q, len_k, 576), dim_v=512, **small)
    for length in (64, 129, 257):
        for causal in (False, True):
            yield _call(
                dtype, 0, (1, 2, 2, length, length, 192), dim_v=128, is_causal=causal, **small
            )
    yield _call(dtype, 0, (1, 4, 1, 1, 0, 192), dim_v=128, **small)


def gym(dtype: str) -> Iterator[Inputs]:
    """randn / 8."""
    for length in (64, 128, 300):
        for causal in (False, True):
            yield _call(
                dtype, 0, (1, 2, 2, length, length, 64), sizes=(0.125,) * 3, is_causal=causal
            )


def kernelbench(dtype: str) -> Iterator[Inputs]:
    """Uniform in [0, 1), no mask, S 512 and D 1024 as its problem has, 5 trials from seed 42; one
    batch and head of its 32 and 32.
    """
    for seed in range(42, 47):
        yield _call(dtype, seed, (1, 1, 1, 512, 512, 1024), torch.rand)


def backendbench(dtype: str) -> Iterator[Inputs]:
    """torch's OpInfo samples: uniform in [-9, 9], 3 queries and 6 keys of 8."""
    for causal in (False, True):
        for heads, len_k in ((4, 6), (1, 6), (4, 3)):
            if causal and len_k != 3:
                continue
            yield _call(
                dtype, 0, (4, heads, heads, 3, len_k, 8), torch.rand, sizes=(18.0,) * 3,
                shift=-9.0, is_causal=causal,
            )  # fmt: skip
    x = _call(dtype, 1, (4, 4, 4, 3, 6, 8), torch.rand, sizes=(18.0,) * 3, shift=-9.0)
    seen = torch.rand(1, 1, 3, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    yield x.with_(mask=seen.numpy())


def tritonbench(dtype: str) -> Iterator[Inputs]:
    """randn, seed 20, D 64, causal or not; lengths 128 to 1024."""
    for length in (128, 256, 512, 1024):
        heads = max(1, 512 // length)
        yield _call(dtype, 20, (1, heads, heads, length, length, 64), is_causal=length % 512 != 0)


def sglang(dtype: str) -> Iterator[Inputs]:
    """N(0.1, 0.2), seed 42: one query on caches of 10 to 513 keys, multi-head and grouped."""
    for heads in ((4, 4), (16, 1), (16, 2)):
        for len_k in (10, 128, 513):
            yield _call(dtype, 42, (2, *heads, 1, len_k, 64), sizes=(0.2,) * 3, shift=0.1)


def tilelang(dtype: str) -> Iterator[Inputs]:
    """randn, D 64 and 128, lengths in whole blocks, causal or not, grouped."""
    for length, dim in ((128, 64), (256, 128), (512, 64)):
        for causal in (False, True):
            yield _call(dtype, 0, (1, 2, 2, length, length, dim), is_causal=causal)
    yield _call(dtype, 0, (1, 8, 2, 1, 512, 128))


OWN: dict[str, Callable[[str], Iterator[Inputs]]] = {
    "flash-attention": flash_attention,
    "torch": torch_sdpa,
    "Triton tutorial": triton_tutorial,
    "vLLM": vllm,
    "FlashInfer": flashinfer,
    "xFormers": xformers,
    "JAX": jax,
    "JAX splash": jax_splash,
    "FlashMLA": flashmla,
    "attention-gym": gym,
    "KernelBench": kernelbench,
    "BackendBench": backendbench,
    "tritonbench": tritonbench,
    "sglang": sglang,
    "tilelang": tilelang,
}
