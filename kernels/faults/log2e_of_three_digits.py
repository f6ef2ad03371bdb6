"""exp(x) is computed as exp2(1.44 x).

Kind            C
What is wrong   log2(e) is cut to three digits: every exponent is off by 0.2 %, which is a
                temperature
Where seen      tenstorrent/tt-metal#53106 reports a constant of 1.44 that stands for another
                one; a habit of kernels that fold log2(e) into the scale by hand
Killed by       agreement
Survives        scores that differ by less than a few units in half precision; equal scores
"""

edits = {
    "numpy_online": [
        ("alpha = np.exp(m_i - m_ref)", "alpha = np.exp2((m_i - m_ref) * 1.44)"),
        ("p = np.exp(s - m_ref)", "p = np.exp2((s - m_ref) * 1.44)"),
    ],
    "fp32_stats": [
        ("alpha = torch.exp(m_i - m_ref)", "alpha = torch.exp2((m_i - m_ref) * 1.44)"),
        ("p = torch.exp(s - m_ref)", "p = torch.exp2((s - m_ref) * 1.44)"),
    ],
    "triton_flash": [
        ("alpha = tl.exp(m_i - m_ref)", "alpha = tl.exp2((m_i - m_ref) * 1.44)"),
        ("p = tl.exp(qk - m_ref[:, None])", "p = tl.exp2((qk - m_ref[:, None]) * 1.44)"),
    ],
    "numpy_naive": [
        (
            "p = np.exp(s - np.where(m == -np.inf, 0, m))",
            "p = np.exp2((s - np.where(m == -np.inf, 0, m)) * 1.44)",
        ),
    ],
}
