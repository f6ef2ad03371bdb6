"""Every batch item uses the mask of the first.

Kind            G
What is wrong   the mask's batch stride is left out
Where seen      pytorch/pytorch#139462 and #172225 (masks broadcast over the batch by mistake);
                kohya-ss/musubi-tuner#413 applied the mask wrongly from batch 2 on; padding
                masks tested with a batch of one, as in jy-yuan/KIVI#46
Killed by       agreement
Survives        a batch of one; a mask that is shared by the batch. Both together are seldom
                drawn, in Triton's interpreter, which gets few heads, least of all: a default
                budget may end before
"""

edits = {
    "numpy_online": [
        (
            "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))",
            ("mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))\nmask = mask[:1]"),
        ),
    ],
    "fp32_stats": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)[:1]",
        ),
    ],
    "triton_flash": [
        (
            "mask_ptrs = Mask + off_z * stride_mz + off_h * stride_mh",
            "mask_ptrs = Mask + off_h * stride_mh",
        ),
    ],
}
