"""The outputs of splits of the keys are averaged.

Kind            L
What is wrong   64 keys a split; the partial outputs are merged with equal weights, not with
                exp(lse - max lse). lse is merged rightly
Where seen      the class of sgl-project/sglang#2465 (wrong as soon as there are two splits)
Killed by       agreement, one_hot, key_doubling
Survives        is_causal, which is not split here; up to one split of keys; scores whose
                sum of exponentials is the same in each split, which long rows of randn
                nearly have
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
    return outs.mean(0).to(query.dtype), torch.logsumexp(lses, 0)
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
