"""The sink is relative to the maximum of the first split.

Kind            G
What is wrong   exp(sink - m) takes m before splits are merged, and joins sums that are relative
                to the merged one
Where seen      Dao-AILab/flash-attention commit 2f78d484 (the maximum that the sink needs is
                not the one that is stored)
Killed by       agreement, split_independence
Survives        one split; rows whose maximum is in the first split; sinks far below the scores
"""

edits = {
    "numpy_online": [
        ("parts.append((sink, np.ones_like(l_i), np.zeros_like(acc)))", "pass"),
        (
            "m_i, l_i, acc = reduce(merge, parts)",
            """
m_i, l_i, acc = reduce(merge, parts)
if sinks is not None:
    l_i = l_i + np.exp(to_array(sinks).astype(q.dtype)[:, None, None] - parts[0][0])
""",
        ),
    ],
    "fp32_stats": [
        ("if sinks is not None and split == 0: ...", "if False: ..."),
        (
            "m_i, l_i, acc = reduce(merge, parts)",
            """
m_i, l_i, acc = reduce(merge, parts)
if sinks is not None:
    l_i = l_i + torch.exp(sinks.to(stats)[:, None, None] - parts[0][0])
""",
        ),
    ],
    "triton_decode": [
        (
            "m_i = tl.load(Sinks + offs_m // len_q % H, mask=rows, other=0.0)",
            "sink = tl.load(Sinks + offs_m // len_q % H, mask=rows, other=0.0)",
        ),
        (
            "l_i += 1.0",
            "pass",
        ),
        (
            "l_i = tl.where(l_i == 0.0, 1.0, l_i)",
            """
if Sinks is not None:
    l_i += tl.exp(sink - tl.load(M + offs_m, mask=rows, other=0.0))
l_i = tl.where(l_i == 0.0, 1.0, l_i)
""",
        ),
    ],
}
