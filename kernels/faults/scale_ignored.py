"""The scale that the caller passes is ignored.

Kind            G
What is wrong   the kernel always uses 1 / sqrt(D)
Where seen      NVIDIA/Megatron-LM#3698 used the default whatever the configuration said,
                bo-ke/llm-internal-medicine#47 too; sgl-project/sgl-kernel-xpu#491 and
                vllm-project/vllm-metal#666 dropped another argument the same way
Killed by       agreement
Survives        scale=None, and a scale that equals the default: all that a test without scale
                draws
"""

edits = {
    "numpy_online": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]))",
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            "sm_scale = 1 / math.sqrt(head_dim)",
        ),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            "sm_scale = 1 / math.sqrt(head_dim)",
        ),
    ],
    "numpy_naive": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]))",
        ),
    ],
}
