"""softcap is accepted and ignored.

Kind            G
What is wrong   the argument is never passed on to the kernel
Where seen      sgl-project/sgl-kernel-xpu#491, vllm-project/vllm-metal#666
Killed by       agreement
Survives        scores far below the cap, as those of randn below 50 are
"""

edits = {
    "numpy_online": [
        ("if softcap: ...", "if False: ..."),
    ],
    "fp32_stats": [
        ("if softcap: ...", "if False: ..."),
    ],
    "triton_flash": [
        (
            "if softcap is not None: ...",
            "if False: ...",
        ),
    ],
    "triton_decode": [
        (
            "if softcap is not None: ...",
            "if False: ...",
        ),
    ],
}
