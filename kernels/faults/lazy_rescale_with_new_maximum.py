"""Small rises of the maximum are not rescaled for, yet taken as the reference.

Kind            B
What is wrong   alpha is 1 unless the maximum rises by more than 8, which is sound only if the
                weights keep the stale maximum; here they use the new one
Where seen      tile-ai/tilelang#2360 (a review of the threshold of 8)
Killed by       agreement, key_permutation, key_doubling
Survives        one block alone, rows whose maximum is in their first block, and maxima that
                rise by more than 8 at a time
"""

edits = {
    "numpy_online": [
        (
            "alpha = np.exp(m_i - m_ref)",
            "alpha = np.where(m_ref - m_i > 8, np.exp(m_i - m_ref), 1)",
        ),
    ],
    "fp32_stats": [
        (
            "alpha = torch.exp(m_i - m_ref)",
            "alpha = torch.where(m_ref - m_i > 8, torch.exp(m_i - m_ref), 1.0)",
        ),
    ],
    "triton_flash": [
        (
            "alpha = tl.exp(m_i - m_ref)",
            "alpha = tl.where(m_ref - m_i > 8.0, tl.exp(m_i - m_ref), 1.0)",
        ),
    ],
}
