"""lse is the logarithm of the normalizer, without the maximum that it is referenced to.

Kind            D
What is wrong   log(l) instead of m + log(l)
Where seen      derivations of online softmax: the row's statistic is m + log(l)
Killed by       agreement, score_shift
Survives        every test of out alone, and rows whose maximum is 0
"""

edits = {
    "numpy_online": [("lse = (m_i + np.log(l_i))[..., 0]", "lse = np.log(l_i)[..., 0]")],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            "lse[:, :, rows] = torch.log(l_i).squeeze(-1)",
        ),
    ],
    "triton_flash": [("lse = (m_i + tl.log(l_i))[:, None]", "lse = tl.log(l_i)[:, None]")],
    "numpy_naive": [("lse = (m + np.log(l))[..., 0]", "lse = np.log(l)[..., 0]")],
}
