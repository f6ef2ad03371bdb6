"""A row that is hidden in every split is merged to NaN.

Kind            L
What is wrong   the weights of a merge are exp(lse - max lse) without a guard, and both are
                -inf for a row that saw no key in any split
Where seen      Dao-AILab/flash-attention commit 26d7d92f, tile-ai/tilelang#328,
                ROCm/aiter#4420, pegainfer-project/pegainfer#21
Killed by       agreement, key_doubling
Survives        rows that see a key; is_causal, which is not split here; up to one split of
                keys
"""

SPLITS = """
if key.shape[2] > 64 and not is_causal:
    wide = torch.promote_types(query.dtype, torch.float32)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    parts = [
        attention(
            query.to(wide), key[:, :, n : n + 64].to(wide), value[:, :, n : n + 64].to(wide),
            attn_mask=None if attn_mask is None else attn_mask[..., n : n + 64],
            scale=scale, enable_gqa=enable_gqa,
        )
        for n in range(0, key.shape[2], 64)
    ]
    outs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
    weights = torch.exp(lses - lses.amax(0))[..., None]
    out = (weights * outs).sum(0) / weights.sum(0)
    return out.to(query.dtype), torch.logsumexp(lses, 0)
"""

edits = {
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            SPLITS + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            SPLITS + "dtype, device = query.dtype, query.device",
        )
    ],
    "triton_flash": [
        (
            "batch, heads, len_q, head_dim = query.shape",
            SPLITS + "batch, heads, len_q, head_dim = query.shape",
        )
    ],
}
