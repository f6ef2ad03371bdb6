"""lse is +inf in rows that see no key.

Kind            D
What is wrong   out is right; with +inf in place of -inf the backward's exp(s - lse) is 0, but
                a merge gives all the weight to the part that saw nothing
Where seen      Dao-AILab/flash-attention's forward writes +inf there, and its combine (commit
                26d7d92f) sets an empty total to it
Killed by       agreement
Survives        every test of out alone, rows that see a key
"""

edits = {
    "numpy_online": [
        (
            "lse = (m_i + np.log(l_i))[..., 0]",
            "lse = np.where(l_i == 0, np.inf, m_i + np.log(l_i))[..., 0].astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            ("lse[:, :, rows] = torch.where(l_i == 0, math.inf, m_i + torch.log(l_i)).squeeze(-1)"),
        ),
    ],
    "triton_flash": [
        (
            "lse = (m_i + tl.log(l_i))[:, None]",
            'lse = tl.where(m_i == float("-inf"), float("inf"), m_i + tl.log(l_i))[:, None]',
        ),
    ],
    "numpy_naive": [
        (
            "lse = (m + np.log(l))[..., 0]",
            "lse = np.where(l == 0, np.inf, m + np.log(l))[..., 0].astype(q.dtype)",
        ),
    ],
}
