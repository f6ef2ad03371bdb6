"""A mask that broadcasts is read as if it had all its elements.

Kind            N
What is wrong   the strides of the mask are those of [B, Hq, Lq, Lk] whatever its shape is.
                Reads beyond the tensor give 0, which hides a key or adds nothing
Where seen      pytorch/pytorch#139462 and #172225 (broadcast block masks give zeros after
                the first batch element)
Killed by       agreement
Survives        a mask of the full shape; B = H = 1 with a row for each query; additive
                masks of 0
"""

edits = {
    "numpy_online": [
        (
            "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))",
            """
full = np.zeros((batch, heads, len_q, len_k), mask.dtype)
full.reshape(-1)[: mask.size] = mask.reshape(-1)
mask = full
""",
        )
    ],
    "fp32_stats": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            """
full = attn_mask.new_zeros(batch, heads, len_q, len_k)
full.view(-1)[: attn_mask.numel()] = attn_mask.flatten()
attn_mask = full
""",
        )
    ],
    "triton_flash": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            """
full = attn_mask.new_zeros(batch, heads, len_q, len_k)
full.view(-1)[: attn_mask.numel()] = attn_mask.flatten()
attn_mask = full
""",
        )
    ],
}
