"""softcap is ignored where a scale is given.

Kind            G
What is wrong   the branch that prepares an explicit scale forgets the cap
Where seen      no public issue names it; sgl-project/sgl-kernel-xpu#491 ignores it always
Killed by       agreement
Survives        the default scale; scores far below the cap
"""

edits = {
    "numpy_online": [
        ("if softcap: ...", "if softcap and scale is None: ..."),
    ],
    "fp32_stats": [
        ("if softcap: ...", "if softcap and scale is None: ..."),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            """
sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
softcap = softcap if scale is None else 0.0
""",
        ),
    ],
    "triton_decode": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            """
sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
softcap = softcap if scale is None else 0.0
""",
        ),
    ],
}
