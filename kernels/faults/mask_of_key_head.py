"""The mask is indexed by key head.

Kind            I
What is wrong   a mask with one matrix a query head is read at h // group
Where seen      fla-org/flash-linear-attention#384 (an offset by the wrong one of the two head
                counts) and vllm-project/vllm#42650
Killed by       agreement
Survives        masks that are shared by the heads; Hkv = Hq. In Triton's interpreter, which
                gets few heads, a default budget may end before both are drawn otherwise
"""

edits = {
    "numpy_online": [
        (
            "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))",
            (
                "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))\n"
                "if enable_gqa:\n"
                "    mask = mask[:, np.arange(heads) // group]"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            (
                "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)\n"
                "if enable_gqa:\n"
                "    attn_mask = attn_mask[:, torch.arange(heads, device=device) // group]"
            ),
        ),
    ],
    "triton_flash": [
        (
            "mask_ptrs = Mask + off_z * stride_mz + off_h * stride_mh",
            "mask_ptrs = Mask + off_z * stride_mz + off_hkv * stride_mh",
        ),
    ],
}
