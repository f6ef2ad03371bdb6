"""The default scale is that of the head size after padding.

Kind            G
What is wrong   1 / sqrt of the next power of two from 16 on, since the padded tensor's shape is
                read
Where seen      intel/ipex-llm#12619 and bytedance-iaas/sglang#485 (heads padded before the
                call, scale taken from the padded size)
Killed by       agreement
Survives        head sizes 16, 32, 64, 128 and 256, which are the ones tested; calls that pass a
                scale
"""

edits = {
    "numpy_online": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            (
                "padded = max(16, 1 << (q.shape[-1] - 1).bit_length())\n"
                "sm_scale = q.dtype.type(1 / math.sqrt(padded) if scale is None else scale)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            (
                "padded = max(16, 1 << (head_dim - 1).bit_length())\n"
                "sm_scale = 1 / math.sqrt(padded) if scale is None else scale"
            ),
        ),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            (
                "padded = max(16, triton.next_power_of_2(head_dim))\n"
                "sm_scale = 1 / math.sqrt(padded) if scale is None else float(scale)"
            ),
        ),
    ],
}
