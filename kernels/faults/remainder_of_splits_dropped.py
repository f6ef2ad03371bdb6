"""Keys are shared out evenly among the splits, and the remainder is dropped.

Kind            L
What is wrong   a split has Lk // splits keys, so that the last Lk % splits keys are in none
Where seen      sgl-project/sglang#2465 (more than one split is wrong);
                flashinfer-ai/flashinfer#1206 (chunks that do not fit the tile)
Killed by       agreement, equal_scores
Survives        Lk that the number of splits divides; is_causal, which is not split here; up
                to 64 keys
"""

SPLITS = """
if key.shape[2] > 64 and not is_causal:
    wide = torch.promote_types(query.dtype, torch.float32)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    each = key.shape[2] // (key.shape[2] // 64 + 1)
    parts = [
        attention(
            query.to(wide), key[:, :, n : n + each].to(wide), value[:, :, n : n + each].to(wide),
            attn_mask=None if attn_mask is None else attn_mask[..., n : n + each],
            scale=scale, enable_gqa=enable_gqa,
        )
        for n in range(0, key.shape[2] - each + 1, each)
    ]
    outs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
    lse = torch.logsumexp(lses, 0)
    weights = torch.exp(lses - lse.masked_fill(lse == -math.inf, 0.0))[..., None]
    return (weights * outs).sum(0).to(query.dtype), lse
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
