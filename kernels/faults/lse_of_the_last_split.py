"""Each split stores its lse in the same place: the last one's is returned.

Kind            L
What is wrong   outputs are merged rightly, but lse is that of the last split alone
Where seen      sgl-project/sgl-kernel-xpu#487 (an inactive split overwrites the lse)
Killed by       agreement
Survives        is_causal, which is not split here; up to one split of keys; every test that
                looks at the output alone
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
    weights = torch.exp(lses - lse.masked_fill(lse == -math.inf, 0.0))[..., None]
    return (weights * outs).sum(0).to(query.dtype), lses[-1]
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
