"""exp(sink) joins sums that are relative to the maximum.

Kind            G
What is wrong   the normalizer gets exp(sink), not exp(sink - m)
Where seen      kyegomez/AttentionIsOFFByOne#2 (softmax plus one: 1 where exp(-m) is meant)
Killed by       agreement, score_shift
Survives        rows whose largest score is 0; sinks far below the scores
"""

edits = {
    "numpy_online": [
        ("parts.append((sink, np.ones_like(l_i), np.zeros_like(acc)))", "pass"),
        (
            "m_i, l_i, acc = reduce(merge, parts)",
            """
m_i, l_i, acc = reduce(merge, parts)
if sinks is not None:
    l_i = l_i + np.exp(to_array(sinks).astype(q.dtype)[:, None, None])
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
    l_i = l_i + torch.exp(sinks.to(stats)[:, None, None])
""",
        ),
    ],
    "triton_flash": [
        (
            "m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_h)",
            "sink = tl.load(Sinks + off_h)",
        ),
        (
            "l_i += 1.0",
            "pass",
        ),
        (
            "l_i = tl.where(l_i == 0.0, 1.0, l_i)",
            """
if Sinks is not None:
    l_i += tl.exp(sink)
l_i = tl.where(l_i == 0.0, 1.0, l_i)
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
    l_i += tl.exp(sink)
l_i = tl.where(l_i == 0.0, 1.0, l_i)
""",
        ),
    ],
}
