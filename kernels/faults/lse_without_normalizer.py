"""lse is the row's maximum alone.

Kind            D
What is wrong   m instead of m + log(l): what is stored is the running maximum
Where seen      derivations of online softmax: the row's statistic is m + log(l)
Killed by       agreement, key_doubling, equal_scores
Survives        every test of out alone, one key, rows that one score dominates
"""

edits = {
    "numpy_online": [("lse = (m_i + np.log(l_i))[..., 0]", "lse = m_i[..., 0]")],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            "lse[:, :, rows] = m_i.squeeze(-1)",
        ),
    ],
    "triton_flash": [("lse = (m_i + tl.log(l_i))[:, None]", "lse = m_i[:, None]")],
    "numpy_naive": [("lse = (m + np.log(l))[..., 0]", "lse = m[..., 0]")],
}
