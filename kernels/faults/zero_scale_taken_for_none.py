"""A scale of 0 means the default.

Kind            G
What is wrong   `scale or 1 / sqrt(D)`: 0 is false
Where seen      SKaiNET-developers/SKaiNET#880 makes 0 stand for the default; a review in
                RL-Align/RL-Kernel#188 notes `is not None` so that an explicit 0 is kept
Killed by       agreement
Survives        every scale but 0
"""

edits = {
    "numpy_online": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(scale or 1 / math.sqrt(q.shape[-1]))",
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            "sm_scale = scale or 1 / math.sqrt(head_dim)",
        ),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            "sm_scale = float(scale or 1 / math.sqrt(head_dim))",
        ),
    ],
    "numpy_naive": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(scale or 1 / math.sqrt(q.shape[-1]))",
        ),
    ],
}
