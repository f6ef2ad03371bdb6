"""A block's weights are exp(s - m_old), while l and acc have moved to m_new.

Kind            B
What is wrong   the block that raises the maximum counts exp(m_new - m_old) times too much; the
                first block is right
Where seen      derivations of online softmax: all three of m, l and acc have to be referenced
                to the new maximum
Killed by       agreement, key_permutation, one_hot, key_doubling
Survives        one block alone, rows whose maximum is in their first block
"""

edits = {
    "numpy_online": [
        ("p = np.exp(s - m_ref)", "p = np.exp(s - np.where(m_i == -np.inf, m_ref, m_i))"),
    ],
    "fp32_stats": [
        (
            "p = torch.exp(s - m_ref)",
            "p = torch.exp(s - torch.where(m_i == -math.inf, m_ref, m_i))",
        ),
    ],
    "triton_flash": [
        (
            "p = tl.exp(qk - m_ref[:, None])",
            'p = tl.exp(qk - tl.where(m_i == float("-inf"), m_ref, m_i)[:, None])',
        ),
    ],
}
