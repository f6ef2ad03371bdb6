"""The outputs of splits are merged as if their natural lse were in base 2.

Kind            L
What is wrong   the weights of a merge are 2^(lse - max lse) where each split's lse is a
                natural logarithm
Where seen      sgl-project/sglang#40903 and #35045, flashinfer-ai/flashinfer#4547 and #4485
                (the reverse: base 2 merged by exp)
Killed by       agreement, key_doubling
Survives        is_causal, which is not split here; up to one split of keys; splits with the
                same lse, which long rows of randn nearly have
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
    lse = torch.logsumexp(lses, 0)
    weights = torch.exp2(lses - lse.masked_fill(lse == -math.inf, 0.0))[..., None]
    total = weights.sum(0)
    out = (weights * outs).sum(0) / total.masked_fill(total == 0, 1.0)
    return out.to(query.dtype), lse
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
