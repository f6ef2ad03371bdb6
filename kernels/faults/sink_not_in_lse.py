"""lse leaves the sink out.

Kind            G
What is wrong   out is normalized with the sink, but lse is that of the keys alone
Where seen      no public issue names it; Dao-AILab/flash-attention commit 2f78d484 computes the
                two from different maxima
Killed by       agreement
Survives        every test that looks at the output alone; sinks far below the scores
"""

edits = {
    "numpy_online": [
        (
            "lse = (m_i + np.log(l_i))[..., 0]",
            """
m_i, l_i, _ = reduce(merge, parts[:num_splits])
lse = (m_i + np.log(l_i))[..., 0]
""",
        ),
    ],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            """
if sinks is not None:
    l_i = l_i - torch.exp(sinks.to(stats)[:, None, None] - m_i)
lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)
""",
        ),
    ],
    "triton_flash": [
        (
            "lse = (m_i + tl.log(l_i))[:, None]",
            """
if Sinks is not None:
    l_i -= tl.exp(tl.load(Sinks + off_h) - m_i)
lse = (m_i + tl.log(l_i))[:, None]
""",
        ),
    ],
    "triton_decode": [
        (
            "tl.store(Lse + offs_m, m_i + tl.log(l_i), mask=rows)",
            """
if Sinks is not None:
    l_i -= tl.exp(tl.load(Sinks + offs_m // len_q % H, mask=rows, other=0.0) - m_i)
tl.store(Lse + offs_m, m_i + tl.log(l_i), mask=rows)
""",
        ),
    ],
}
