"""The running maximum is updated before the rescale factor is computed from it.

Kind            B
What is wrong   alpha = exp(m - m) is 1, and neither l nor acc is rescaled: weights are still
                positive and sum to 1, V all ones gives 1
Where seen      derivations of online softmax: m_old and m_new are both needed, in-place maxima
                lose one
Killed by       agreement, one_hot, key_doubling, key_permutation
Survives        one block alone, rows whose maximum is in their first block, and V constant
                along the keys but for lse
"""

edits = {
    "numpy_online": [("alpha = np.exp(m_i - m_ref)", "alpha = np.exp(m_new - m_ref)")],
    "fp32_stats": [("alpha = torch.exp(m_i - m_ref)", "alpha = torch.exp(m_new - m_ref)")],
    "triton_flash": [("alpha = tl.exp(m_i - m_ref)", "alpha = tl.exp(m_new - m_ref)")],
}
