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
}
