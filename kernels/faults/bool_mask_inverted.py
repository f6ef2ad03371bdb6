"""True hides a key instead of letting it take part.

Kind            A
What is wrong   the opposite reading of a bool mask
Where seen      pytorch's two conventions: True takes part in scaled_dot_product_attention and
                is ignored in MultiheadAttention's key_padding_mask
Killed by       agreement, constant_v, one_hot, key_doubling
Survives        additive masks, causal masks and no mask
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s + block if additive else np.where(block, -np.inf, s).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [("s = s.masked_fill(~mask, -math.inf)", "s = s.masked_fill(mask, -math.inf)")],
    "triton_flash": [("visible = mask", "visible &= mask == 0")],
    "numpy_naive": [
        (
            "s = np.where(attn_mask.cpu().numpy(), s, -np.inf).astype(q.dtype)",
            "s = np.where(attn_mask.cpu().numpy(), -np.inf, s).astype(q.dtype)",
        ),
    ],
}
