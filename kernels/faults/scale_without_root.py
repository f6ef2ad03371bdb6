"""The default scale is 1 / D.

Kind            G
What is wrong   the root is missing
Where seen      delzac/cntkx#10 (the root was left out); mlc-ai/mlc-llm#3426 fell back to a
                wrong default, 1, in one path; muP's 1 / D is the same formula on purpose
                (microsoft/onnxruntime#14348)
Killed by       agreement
Survives        calls that pass a scale; D = 1; equal scores, but for the lse
"""

edits = {
    "numpy_online": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(1 / q.shape[-1] if scale is None else scale)",
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            "sm_scale = 1 / head_dim if scale is None else scale",
        ),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            "sm_scale = 1 / head_dim if scale is None else float(scale)",
        ),
    ],
    "numpy_naive": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(1 / q.shape[-1] if scale is None else scale)",
        ),
    ],
}
