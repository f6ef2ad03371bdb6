"""A boolean mask is inverted in the caller's memory.

Kind            N
What is wrong   the kernel wants True for hidden keys and inverts the mask it was given:
                this call is right, and the next one hides what it should see
Where seen      no public report at hand; the layers of a model share one mask
Killed by       agreement, repeat, inputs_unmodified
Survives        additive masks, no mask, and every test that builds its mask for each call.
                PyTorch refuses to write to an expanded mask
"""

edits = {
    "numpy_online": [
        (
            "mask = to_array(attn_mask).astype(q.dtype) if additive else attn_mask.cpu().numpy()",
            """
mask = to_array(attn_mask).astype(q.dtype) if additive else attn_mask.cpu().numpy()
if not additive:
    np.logical_not(mask, out=mask)
""",
        ),
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s + block if additive else np.where(block, -np.inf, s).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            """
if attn_mask.dtype == torch.bool:
    attn_mask.logical_not_()
attn_mask = attn_mask.expand(batch, heads, len_q, len_k)
""",
        ),
        (
            "s = s.masked_fill(~mask, -math.inf)",
            "s = s.masked_fill(mask, -math.inf)",
        ),
    ],
    "triton_flash": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            """
if attn_mask.dtype == torch.bool:
    attn_mask.logical_not_()
attn_mask = attn_mask.expand(batch, heads, len_q, len_k)
""",
        ),
        ("visible = mask", "visible &= mask == 0"),
    ],
}
