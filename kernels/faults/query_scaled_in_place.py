"""Q is multiplied with the scale in the caller's memory.

Kind            N
What is wrong   q *= scale instead of q * scale: this call's result is right but for a
                rounding of q, and the next one sees another q
Where seen      no public report at hand; a NumPy array shares the tensor's memory, which
                its author need not know
Killed by       agreement, inputs_unmodified
Survives        a scale of 1; every test that calls a kernel once and compares with a
                reference computed before. In the NumPy kernels float16 and bfloat16, which
                are copied when they are widened
"""

edits = {
    "numpy_naive": [
        (
            "s = (q @ k.swapaxes(-1, -2)) * sm_scale",
            """
q *= sm_scale
s = q @ k.swapaxes(-1, -2)
""",
        )
    ],
    "numpy_online": [
        (
            "batch, heads, len_q, _ = q.shape",
            """
batch, heads, len_q, _ = q.shape
q *= sm_scale
""",
        ),
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            "s = q @ k[:, :, start_n:end_n].swapaxes(-1, -2)",
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            """
query.mul_(1 / math.sqrt(head_dim) if scale is None else scale)
sm_scale = 1.0
""",
        )
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            """
query.mul_(1 / math.sqrt(head_dim) if scale is None else float(scale))
sm_scale = 1.0
""",
        )
    ],
}
