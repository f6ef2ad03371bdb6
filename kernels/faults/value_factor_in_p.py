"""The values' factor is multiplied into P before P is rounded.

Kind            Q
What is wrong   P, enlarged to 256, saturates where the factor is above 1.75, and underflows
                where it is small
Where seen      flashinfer-ai/flashinfer#5272 applies the factor to P, in a wider format,
                where it is harmless
Killed by       agreement
Survives        factors near 1; e5m2, which holds 224 times 256
"""

edits = {
    "fp32_float8": [
        (
            "p = saturated(p, p_format).to(fp32)",
            "p = saturated(p * c, p_format).to(fp32)",
        ),
        (
            "acc = acc * alpha + (p @ v) * c",
            "acc = acc * alpha + p @ v",
        ),
    ],
    "triton_float8": [
        (
            "p = tl.exp2((qk - m_ref[:, None]) * 1.4426950408889634 + OFFSET)",
            """
p = tl.exp2((qk - m_ref[:, None]) * 1.4426950408889634 + OFFSET)
p_v = p * tl.load(vs_ptrs + start_n // PER_N * stride_vsn)
""",
        ),
        (
            "acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v) * v_scale",
            "acc = tl.dot(p_v.to(v.dtype), v, acc * alpha[:, None])",
        ),
    ],
}
