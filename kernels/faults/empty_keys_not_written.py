"""Without any keys the call returns at once, and what it returns was never written.

Kind            H
What is wrong   where Lk = 0 there is nothing to launch, and out and lse are returned as
                torch.empty gives them
Where seen      flashinfer-ai/flashinfer#440, #363 and #353 (an empty cache leaves out and
                lse unset), #3047; Dao-AILab/flash-attention commits a3a257c7 and db2f8069
Killed by       agreement
Survives        Lk > 0, and so every test that does not try an empty cache; lse apart, fresh
                memory, which is 0
"""

edits = {
    "numpy_online": [
        (
            "len_k = k.shape[2]",
            """
len_k = k.shape[2]
if len_k == 0:
    empty = torch.empty(batch, heads, len_q, v.shape[-1], dtype=query.dtype)
    return empty, torch.from_numpy(q).new_empty(batch, heads, len_q)
""",
        )
    ],
    "fp32_stats": [
        (
            "lse = torch.empty(batch, heads, len_q, dtype=stats, device=device)",
            """
lse = torch.empty(batch, heads, len_q, dtype=stats, device=device)
if len_k == 0:
    return out, lse
""",
        )
    ],
    "triton_flash": [
        (
            "num_blocks_m = triton.cdiv(len_q, BLOCK_M)",
            """
if len_k == 0:
    return out, lse
num_blocks_m = triton.cdiv(len_q, BLOCK_M)
""",
        )
    ],
}
