"""The last block of keys does not rescale what came before.

Kind            B
What is wrong   the last iteration, peeled off for its tail, adds to l and acc without alpha
Where seen      no public issue names it; kernels peel the ragged or masked block off their
                loop and repeat its body by hand, as Dao-AILab/flash-attention's #443 and #334
                did in the backward
Killed by       agreement, key_permutation
Survives        rows whose maximum is not in the last block, one block alone
"""

edits = {
    "numpy_online": [
        (
            "alpha = np.exp(m_i - m_ref)",
            "alpha = np.exp(m_i - m_ref) if start_n != starts[-1] else np.ones_like(m_i)",
        ),
    ],
    "fp32_stats": [
        (
            "alpha = torch.exp(m_i - m_ref)",
            "alpha = torch.exp(m_i - m_ref) if start_n != starts[-1] else torch.ones_like(m_i)",
        ),
    ],
    "triton_flash": [
        (
            "alpha = tl.exp(m_i - m_ref)",
            "alpha = tl.where(start_n + BLOCK_N < end_n, tl.exp(m_i - m_ref), 1.0)",
        ),
    ],
}
