"""Tensors: from recipes to torch tensors, and from a user's tensors to what judges them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from flashcheck import arena
from flashcheck.formats import EVERY, Array, Bools
from flashcheck.inputs import LENGTHS, Inputs

if TYPE_CHECKING:
    import torch

BY_PROBLEM_ALONE = (
    "a packed batch or a paged cache is judged by its Problem alone; give each sequence's tensors "
    "as a call of its own"
)


def place(x: Inputs, device: str | torch.device = "cpu") -> dict[str, torch.Tensor]:
    """q, k, v, mask and the options that are tensors: in the layout of `x`, in new memory of a
    device."""
    import torch

    plan = arena.plan(arena.key_of(x, "bhsd"))
    # torch's memory begins at a multiple of 64 bytes, as the plan takes it to.
    memory = torch.empty(plan.size, dtype=torch.uint8)
    arena.write(plan, x, memory.numpy())
    on_cpu = torch.device(device).type == "cpu"
    return arena.tensors(plan, memory.numpy() if on_cpu else memory.to(device))


def keywords(x: Inputs, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The options of a call as a kernel gets them, attn_mask left out."""
    given = x.options()
    if not x.option_tensors:
        return given
    placed = place(x, device)
    return {name: placed.get(name, value) for name, value in given.items()}


def inputs_of(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    num_splits: int = 1,
    q_descale: torch.Tensor | float | None = None,
    k_descale: torch.Tensor | float | None = None,
    v_descale: torch.Tensor | float | None = None,
    descale_block: tuple[int, int] = (1, 1),
    **others: object,
) -> Inputs:
    """One call of attention on tensors that are at hand, for `assert_within_bound`.

    query [B, Hq, Lq, D], key [B, Hkv, Lk, D], value [B, Hkv, Lk, Dv], of one dtype (float64,
    float32, float16, bfloat16, float8_e4m3fn or float8_e5m2), on any device; attn_mask, of rank
    1 to 4, broadcasts to [B, Hq, Lq, Lk] and is bool, float32 or of query's dtype. The options
    mean what they mean to torch's scaled_dot_product_attention, and window_size (left, right),
    softcap, alibi_slopes and sinks (float32, [Hq]) what they mean in the kernel contract;
    num_splits changes no exact result. Everything is copied.

    q_descale, k_descale, v_descale, for float8: float32 factors of query, key and value, per
    tensor (a number), per head [B, Hkv] or per block [B, Hkv, ceil(L / block)], with
    descale_block = (queries, keys) of a block; a query head uses the factor of its key head.

    Raises TypeError for what is no tensor; ValueError for dtypes and shapes that do not fit, for
    cu_seqlens and block_table, and for NaN or infinity, about which the bound says nothing (in a
    mask, -inf hides a key).
    """
    if others:
        _refuse(others)
    named = {"query": query, "key": key, "value": value}
    dtype, mask_dtype = _dtype("query", query), "bool"
    for name, tensor in named.items():
        if _dtype(name, tensor) != dtype or dtype not in EVERY:
            given = ", ".join(f"{n} {_dtype(n, t)}" for n, t in named.items())
            allowed = ", ".join(EVERY)
            raise ValueError(f"dtypes are {given}; they must be one of {allowed}")
        if tensor.ndim != 4:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must have four axes")
    _check_shapes(query, key, value, enable_gqa)
    mask: Array | Bools | None = None
    if attn_mask is not None:
        mask, mask_dtype = _mask(attn_mask, query, key), _dtype("attn_mask", attn_mask)
    if scale is not None:
        scale = float(scale)  # a tensor or a NumPy scalar too
        if not math.isfinite(scale):
            raise ValueError(f"scale is {scale}; it must be finite")
    q, k, v = (_finite(name, tensor) for name, tensor in named.items())
    return Inputs(
        dtype=dtype, q=q, k=k, v=v, scale=scale, is_causal=is_causal, mask=mask,
        mask_dtype=mask_dtype, enable_gqa=enable_gqa,
        window=(int(window_size[0]), int(window_size[1])), softcap=float(softcap),
        num_splits=num_splits,
        alibi_slopes=_per_head("alibi_slopes", alibi_slopes), sinks=_per_head("sinks", sinks),
        q_descale=_descale("q_descale", q_descale), k_descale=_descale("k_descale", k_descale),
        v_descale=_descale("v_descale", v_descale), descale_block=descale_block,
    )  # fmt: skip


def _refuse(others: Mapping[str, object]) -> NoReturn:
    """Raises for options that `inputs_of` does not have."""
    name, *_ = others
    if name in (*LENGTHS, "max_seqlen_q", "max_seqlen_k"):
        raise ValueError(f"{name}: {BY_PROBLEM_ALONE}")
    raise TypeError(f"inputs_of() got an unexpected keyword argument {name!r}")


def _per_head(name: str, given: torch.Tensor | None) -> Array | None:
    if given is None:
        return None
    if _dtype(name, given) != "float32":
        raise ValueError(f"{name} is {_dtype(name, given)}; it must be float32")
    return _float64(given)


def _descale(name: str, given: torch.Tensor | float | None) -> Array | None:
    if given is None or isinstance(given, int | float):
        return None if given is None else np.array(float(given))
    if _dtype(name, given) != "float32":
        raise ValueError(f"{name} is {_dtype(name, given)}; it must be float32")
    return _float64(given)


def _dtype(name: str, tensor: object) -> str:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, not a torch tensor")
    return str(tensor.dtype).removeprefix("torch.")


def _check_shapes(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, enable_gqa: bool
) -> None:
    b, hq, lq, d = query.shape
    hkv, lk, dv = key.shape[1], key.shape[2], value.shape[3]
    if not (key.shape == (b, hkv, lk, d) and value.shape == (b, hkv, lk, dv)):
        shapes = ", ".join(str(list(t.shape)) for t in (query, key, value))
        raise ValueError(
            f"query, key and value have the shapes {shapes}; they must be [B, Hq, Lq, D], "
            "[B, Hkv, Lk, D] and [B, Hkv, Lk, Dv]"
        )
    if min(b, hq, hkv, lq, d, dv) < 1:
        raise ValueError(f"query has shape {list(query.shape)}: only Lk may be 0")
    if hq != hkv and (not enable_gqa or hq % hkv):
        raise ValueError(
            f"there are {hq} query heads on {hkv} key heads; that takes enable_gqa=True and a "
            "multiple"
        )


def _mask(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> Array | Bools:
    shape = (*query.shape[:3], key.shape[2])
    dtype, allowed = _dtype("attn_mask", mask), ("bool", "float32", _dtype("query", query))
    if dtype not in allowed:
        raise ValueError(f"attn_mask is {dtype}; it must be {', '.join(dict.fromkeys(allowed))}")
    fits = 1 <= mask.ndim <= 4 and all(
        n in (1, whole) for n, whole in zip(mask.shape[::-1], shape[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"attn_mask has shape {list(mask.shape)}, which does not broadcast to {list(shape)}"
        )
    if dtype == "bool":
        seen: Bools = np.array(mask.detach().cpu().numpy())
        return seen
    bias = _float64(mask)
    if not (np.isfinite(bias) | np.isneginf(bias)).all():
        raise ValueError("attn_mask holds NaN or +inf; hide keys by -inf or a boolean mask")
    return bias


def _finite(name: str, tensor: torch.Tensor) -> Array:
    values = _float64(tensor)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} holds NaN or infinity: the bound says nothing about the result")
    return values


def _float64(tensor: torch.Tensor) -> Array:
    """A copy, in which every value is exact."""
    values: Array = np.array(tensor.detach().cpu().double().numpy())
    return values
