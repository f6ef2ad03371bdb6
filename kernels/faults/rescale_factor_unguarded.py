"""Only the weights are guarded against a maximum of -inf, not the rescale factor.

Kind            A
What is wrong   alpha = exp(m_i - m_new) is NaN while both are -inf: 0 * NaN spoils l and acc
                of rows whose first block is hidden
Where seen      pegainfer-project/pegainfer#21 (-inf minus -inf in alpha), and one of the three
                places that flashinfer-ai/flashinfer#4401 had to clamp after a sentinel was
                made -inf
Killed by       agreement, key_doubling, gqa_repeated_heads, query_independence
Survives        no mask, causal masks, and rows with a key in their first block
"""

edits = {
    "numpy_online": [("alpha = np.exp(m_i - m_ref)", "alpha = np.exp(m_i - m_new)")],
    "fp32_stats": [("alpha = torch.exp(m_i - m_ref)", "alpha = torch.exp(m_i - m_new)")],
    "triton_flash": [("alpha = tl.exp(m_i - m_ref)", "alpha = tl.exp(m_i - m_new)")],
}
