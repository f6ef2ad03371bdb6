"""triton_flash's kernel with rows split between warps, which an H200 gets wrong.

    python reports/h200/miscompiled.py

q = k = 0 and v = 1, so that every output is 1. Four warps for 32 rows part each row of scores
between warps; two do not. Triton 3.6 with its ptxas: 56 of 65 outputs are 0 with four warps, and
none where ptxas does not optimize.
"""

from __future__ import annotations

import tempfile

import torch
import triton

from flashcheck.kernels.triton_flash import _attention_forward_unaligned as forward


def wrong(num_warps: int, dim: int = 33, dim_v: int = 65) -> int:
    """How many outputs of one query and one key are not 1."""
    on_gpu = {"dtype": torch.bfloat16, "device": "cuda"}
    q, v = torch.zeros(1, 1, 1, dim, **on_gpu), torch.ones(1, 1, 1, dim_v, **on_gpu)
    out, lse = torch.zeros_like(v), torch.zeros(1, 1, 1, device="cuda")
    forward[(1,)](
        q, q, v, None, out, lse, dim**-0.5, *q.stride(), *q.stride(), *v.stride(), 0, 0, 0, 0,
        1, 1, 1, 1, 1, dim, dim_v, IS_CAUSAL=True, BLOCK_M=32, BLOCK_N=64, BLOCK_D=64,
        BLOCK_DV=128, num_warps=num_warps, num_stages=1,
    )  # fmt: skip
    return int((out != 1).sum())


print(f"torch {torch.__version__}  triton {triton.__version__}  {torch.cuda.get_device_name()}")
print(f"two warps: {wrong(2)} of 65 outputs are wrong")
print(f"four warps: {wrong(4)} of 65 outputs are wrong")
triton.knobs.nvidia.disable_ptxas_opt = True
forward.device_caches.clear()
with tempfile.TemporaryDirectory() as triton.knobs.cache.dir:
    print(f"four warps, ptxas without optimization: {wrong(4)} of 65 outputs are wrong")
