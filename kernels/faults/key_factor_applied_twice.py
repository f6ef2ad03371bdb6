"""The keys' factor is in the scale, and multiplies the scores as well.

Kind            Q
What is wrong   k_descale is folded into the scale by the caller, and applied by the kernel
                again
Where seen      kernels that take over who applies a factor from one another: ROCm/aiter#2267
                moves them from the callers into the kernel
Killed by       agreement
Survives        a factor of 1
"""

edits = {
    "fp32_float8": [
        (
            "s = (q @ k.transpose(-1, -2)) * (a * b * sm_scale)",
            "s = (q @ k.transpose(-1, -2)) * (a * b * b * sm_scale)",
        ),
    ],
    "triton_float8": [
        (
            "qk = tl.dot(q, k) * (q_scale * k_scale)",
            "qk = tl.dot(q, k) * (q_scale * k_scale * k_scale)",
        ),
    ],
}
