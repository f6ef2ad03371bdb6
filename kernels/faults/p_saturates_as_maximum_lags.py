"""P is cut to its format's largest number where the maximum lags.

Kind            Q
What is wrong   the maximum may lag by 4 octaves to save a rescale, so that P, enlarged by
                2^8, reaches 2^12 and is cut to 448 for P.V, not for l
Where seen      Dao-AILab/flash-attention#2716, #2577, #2694, #2717: keys lost up to 89 % of
                their weight
Killed by       agreement
Survives        a maximum in the first block, or one that rises by more than 4 octaves at
                once; e5m2
"""

edits = {
    "fp32_float8": [
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            """
m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))
m_new = torch.where((m_new - m_i) * LOG2E > 4, m_new, m_i)
""",
        ),
    ],
    "triton_float8": [
        (
            "m_new = tl.maximum(m_i, tl.max(qk, 1))",
            """
m_new = tl.maximum(m_i, tl.max(qk, 1))
m_new = tl.where((m_new - m_i) * 1.4426950408889634 > 4, m_new, m_i)
""",
        ),
    ],
}
