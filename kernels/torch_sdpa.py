"""torch.nn.functional.scaled_dot_product_attention, as it dispatches and backend by backend.

What is declared was measured with torch 2.13 on a CPU (AVX-512, no AMX):

- A row that sees no key and Lk = 0 give zeros in every backend, but for Lk = 0 in float16:
  whatever its memory held before may be returned. That is refused here.
- The flash kernel multiplies the causal mask's -inf by the scale, so that a scale of 0 or
  less gives NaN together with `is_causal`; without it, and in the math backend, such scales
  are right. `positive_scale` is declared where flash may run.
- The flash kernel is wrong for a float32 mask beside float64 tensors and 16 or more keys:
  even a mask of zeros changes the result. That pair is refused here, not silently accepted.
- Flash needs Dv = D, a last dimension of stride 1 and a mask of rank 2 or 4. The dispatcher
  runs math for the rest, but for masks of rank 1, which it refuses.
- The flash kernel's backward adds up dk and dv in half precision: over the query heads of a key
  head, and over blocks of 32 queries; dq likewise over blocks of 512 keys. The contract rounds a
  gradient once, so that such calls are refused where they need that gradient.
- Subnormal inputs and results are honoured in every dtype. AMX tiles flush bfloat16 ones
  (Intel's manual, TDPBF16PS), so a machine that has them declares it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from flashcheck.kernel import Contract, Kernel


def _has_amx() -> bool:
    supported = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(supported is not None and supported())


def _attention(backend: SDPBackend | None) -> Callable[..., torch.Tensor]:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """q [B, Hq, Lq, D], k [B, Hkv, Lk, D], v [B, Hkv, Lk, Dv] -> out [B, Hq, Lq, Dv]."""
        _refuse(backend, query, key, value, attn_mask)
        chosen: Any = nullcontext() if backend is None else sdpa_kernel(backend)
        try:
            with chosen:
                return scaled_dot_product_attention(
                    query,
                    key,
                    value,
                    attn_mask=attn_mask,
                    is_causal=is_causal,
                    scale=scale,
                    enable_gqa=enable_gqa,
                )
        except RuntimeError as error:
            if "No available kernel" not in str(error):
                raise
            # The dispatcher's refusal: alignment, lengths, dtypes that a backend does not take.
            raise NotImplementedError(str(error)) from None

    return attention


def _refuse(
    backend: SDPBackend | None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
) -> None:
    """Refuse what a backend does not take but finds out only at the call, or gets wrong."""
    if query.dtype == torch.float16 and key.shape[2] == 0 and not query.is_cuda:
        raise NotImplementedError("for no keys in float16 the output is left unwritten on a CPU")
    if backend == SDPBackend.MATH:
        return
    if key.shape[2] == 0 and (query.is_cuda or backend is not None):
        raise NotImplementedError("only the math backend takes no keys in every version of torch")
    if backend == SDPBackend.FLASH_ATTENTION:
        if query.shape[-1] != value.shape[-1]:
            raise NotImplementedError("flash needs value's head dim to be query's")
        if any(x.stride(-1) != 1 for x in (query, key, value)):
            raise NotImplementedError("flash needs a last dimension of stride 1")
    mask_dtype = None if attn_mask is None else attn_mask.dtype
    if query.dtype == torch.float64 and mask_dtype == torch.float32:
        raise NotImplementedError("flash is wrong for a float32 mask beside float64 tensors")
    if query.dtype in (torch.float16, torch.bfloat16) and not query.is_cuda:
        many = query.shape[1] != key.shape[1] or query.shape[2] > 32
        if many and (key.requires_grad or value.requires_grad):
            raise NotImplementedError("flash sums dk and dv in half precision over heads and rows")
        if key.shape[2] > 512 and query.requires_grad:
            raise NotImplementedError("flash sums dq in half precision over blocks of keys")


_CONTRACT = Contract(flushes_subnormals=True if _has_amx() else None)


def _kernel(backend: SDPBackend | None, *, positive_scale: bool = True) -> Kernel:
    return Kernel(
        _attention(backend),
        dtypes=("float64", "float32", "float16", "bfloat16"),
        positive_scale=positive_scale,
        contract=_CONTRACT,
    )


kernel = _kernel(None)
variants: dict[str, Kernel] = {
    "math": _kernel(SDPBackend.MATH, positive_scale=False),
    "flash": _kernel(SDPBackend.FLASH_ATTENTION),
    "efficient": _kernel(SDPBackend.EFFICIENT_ATTENTION),
    "cudnn": _kernel(SDPBackend.CUDNN_ATTENTION),
}
