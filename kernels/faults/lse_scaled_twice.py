"""lse has the maximum of scores that were scaled already times the scale.

Kind            D
What is wrong   m * scale + log(l), right where m is the maximum of raw q.k, as
                FlashAttention-2 keeps it, wrong after the scale was moved to q
Where seen      no public issue names it; kernels differ in whether m is scaled
Killed by       agreement, score_shift
Survives        every test of out alone, scale 1, rows whose maximum is 0
"""

edits = {
    "numpy_online": [
        ("lse = (m_i + np.log(l_i))[..., 0]", "lse = (m_i * sm_scale + np.log(l_i))[..., 0]"),
    ],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            "lse[:, :, rows] = (m_i * sm_scale + torch.log(l_i)).squeeze(-1)",
        ),
    ],
    "triton_flash": [
        ("lse = (m_i + tl.log(l_i))[:, None]", "lse = (m_i * sm_scale + tl.log(l_i))[:, None]"),
    ],
    "numpy_naive": [("lse = (m + np.log(l))[..., 0]", "lse = (m * sm_scale + np.log(l))[..., 0]")],
}
