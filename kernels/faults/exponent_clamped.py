"""exp clamps its argument at -88.5, so that exp(-inf) is not 0.

Kind            A
What is wrong   a range reduction without the case of -inf: hidden keys weigh 4e-39, which is
                all that a row without keys has, and becomes a mean of V
Where seen      tenstorrent/tt-metal#56430 (issue #56056)
Killed by       agreement, causal_prefix, convexity, poison_masked
Survives        rows that see a key: 4e-39 beside 1 is lost. float16: such a weight is rounded
                to 0 in fp32_stats and triton_flash, and the output is right
"""

edits = {
    "numpy_online": [("p = np.exp(s - m_ref)", "p = np.exp(np.maximum(s - m_ref, -88.5))")],
    "fp32_stats": [("p = torch.exp(s - m_ref)", "p = torch.exp((s - m_ref).clamp(min=-88.5))")],
    "triton_flash": [
        ("p = tl.exp(qk - m_ref[:, None])", "p = tl.exp(tl.maximum(qk - m_ref[:, None], -88.5))"),
    ],
    "numpy_naive": [
        (
            "p = np.exp(s - np.where(m == -np.inf, 0, m))",
            "p = np.exp(np.maximum(s - np.where(m == -np.inf, 0, m), -88.5))",
        ),
    ],
}
