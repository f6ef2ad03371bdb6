"""A row that sees no key gives equal weights to keys that are hidden.

Kind            A
What is wrong   the guard for a maximum of -inf sets the weights to 1 instead of 0; in one pass
                the last block's remain, since alpha is 0
Where seen      microsoft/onnxruntime#4129: the guard for a sum of 0 writes 1 / length
Killed by       agreement, poison_masked
Survives        every row that sees a key, and lse, which stays -inf
"""

edits = {
    "numpy_online": [
        ("p = np.exp(s - m_ref)", "p = np.where(m_new == -np.inf, 1, np.exp(s - m_ref))"),
    ],
    "fp32_stats": [
        (
            "p = torch.exp(s - m_ref)",
            "p = torch.where(m_new == -math.inf, 1.0, torch.exp(s - m_ref))",
        ),
    ],
    "triton_flash": [
        (
            "p = tl.exp(qk - m_ref[:, None])",
            'p = tl.where((m_new == float("-inf"))[:, None], 1.0, tl.exp(qk - m_ref[:, None]))',
        ),
    ],
    "numpy_naive": [
        (
            "p = np.exp(s - np.where(m == -np.inf, 0, m))",
            "p = np.where(m == -np.inf, 1, np.exp(s - m))",
        ),
    ],
}
