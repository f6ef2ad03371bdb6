"""The rescale factor is exp2 of a difference in nats.

Kind            B
What is wrong   a fast path through exp2 that folds log2(e) into the scores' exponent and
                forgets it in alpha's
Where seen      lightseekorg/tokenspeed#571 leaks base 2 from its exp2 path into lse; here it
                is alpha that is in the wrong base
Killed by       agreement, key_permutation, key_doubling
Survives        one block alone, rows whose maximum is in their first block
"""

edits = {
    "numpy_online": [("alpha = np.exp(m_i - m_ref)", "alpha = np.exp2(m_i - m_ref)")],
    "fp32_stats": [("alpha = torch.exp(m_i - m_ref)", "alpha = torch.exp2(m_i - m_ref)")],
    "triton_flash": [("alpha = tl.exp(m_i - m_ref)", "alpha = tl.exp2(m_i - m_ref)")],
}
