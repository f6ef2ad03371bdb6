"""Scores are divided by the keys' factor.

Kind            Q
What is wrong   a scale, by which a tensor was divided before it was rounded, and its inverse
                are both called k_scale
Where seen      ROCm/aiter#2267, which has to settle which of the two is which
Killed by       agreement
Survives        a factor of 1
"""

edits = {
    "fp32_float8": [
        (
            "s = (q @ k.transpose(-1, -2)) * (a * b * sm_scale)",
            "s = (q @ k.transpose(-1, -2)) * (a / b * sm_scale)",
        ),
    ],
    "triton_float8": [
        (
            "qk = tl.dot(q, k) * (q_scale * k_scale)",
            "qk = tl.dot(q, k) * (q_scale / tl.where(visible, k_scale, 1.0))",
        ),
    ],
}
