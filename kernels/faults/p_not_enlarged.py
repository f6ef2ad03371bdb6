"""P is rounded to float8 as it is, between 0 and 1.

Kind            Q
What is wrong   weights below 2^-10 of the largest become 0 in P.V and still count in l; those
                below 2^-6 lose bits
Where seen      flashinfer-ai/flashinfer#5020, ROCm/FlyDSL#1020
Killed by       agreement
Survives        weights that are all near the largest; tolerances for float8 and random
                inputs; lse, which is right
"""

edits = {
    "fp32_float8": [
        (
            "p = torch.exp2((s - m_ref) * LOG2E + P_OFFSET)",
            "p = torch.exp2((s - m_ref) * LOG2E)",
        ),
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i * 2.0**-P_OFFSET)).squeeze(-1)",
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
        ),
    ],
    "triton_float8": [
        (
            "p = tl.exp2((qk - m_ref[:, None]) * 1.4426950408889634 + OFFSET)",
            "p = tl.exp2((qk - m_ref[:, None]) * 1.4426950408889634)",
        ),
        (
            "lse = (m_i + tl.log(l_i) - OFFSET * 0.6931471805599453)[:, None]",
            "lse = (m_i + tl.log(l_i))[:, None]",
        ),
    ],
}
