"""The rescale factor is exp(m_new - m_old), the inverse of what it should be.

Kind            B
What is wrong   earlier blocks are blown up by the square of what they should shrink by; for
                the first block, where that would be inf * 0, it is set to 0
Where seen      deepseek-ai/FlashMLA#177, in the documentation
Killed by       agreement, key_permutation, key_doubling, strides
Survives        one block alone, rows whose maximum is in their first block
"""

edits = {
    "numpy_online": [
        ("alpha = np.exp(m_i - m_ref)", "alpha = np.where(m_i == -np.inf, 0, np.exp(m_ref - m_i))"),
    ],
    "fp32_stats": [
        (
            "alpha = torch.exp(m_i - m_ref)",
            "alpha = torch.exp(m_ref - m_i).masked_fill(m_i == -math.inf, 0.0)",
        ),
    ],
    "triton_flash": [
        (
            "alpha = tl.exp(m_i - m_ref)",
            'alpha = tl.where(m_i == float("-inf"), 0.0, tl.exp(m_ref - m_i))',
        ),
    ],
}
