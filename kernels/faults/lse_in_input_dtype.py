"""lse is rounded to the dtype of the inputs.

Kind            D
What is wrong   lse goes through the buffer, or the cast, that the output goes through
Where seen      no public issue names it; a backward or a merge from such an lse is off by a
                factor of 1 + |lse| u
Killed by       agreement
Survives        float64 and float32, where nothing is rounded and the edit changes nothing; an
                lse of few bits; every test of out alone
"""

edits = {
    "numpy_online": [
        (
            "lse = (m_i + np.log(l_i))[..., 0]",
            "lse = to_array(to_tensor((m_i + np.log(l_i))[..., 0], query))",
        ),
    ],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1).to(dtype)",
        ),
    ],
    "triton_flash": [
        (
            "lse = (m_i + tl.log(l_i))[:, None]",
            "lse = (m_i + tl.log(l_i)).to(Out.dtype.element_ty).to(tl.float32)[:, None]",
        ),
    ],
    "numpy_naive": [
        (
            "lse = (m + np.log(l))[..., 0]",
            "lse = to_array(to_tensor((m + np.log(l))[..., 0], query))",
        ),
    ],
}
