"""The sink joins the normalizer, but not the maximum.

Kind            G
What is wrong   exp(sink - m) with m of the keys alone is infinite in a row that sees no key,
                and where the sink is far above the scores
Where seen      NVIDIA/cudnn-frontend#333 (review: exp2(sink - row_max) with row_max = -inf)
Killed by       agreement
Survives        rows that see a key, whose scores are not far below the sink
"""

edits = {
    "numpy_online": [
        ("parts.append((sink, np.ones_like(l_i), np.zeros_like(acc)))", "pass"),
        (
            "m_i, l_i, acc = reduce(merge, parts)",
            """
m_i, l_i, acc = reduce(merge, parts)
if sinks is not None:
    l_i = l_i + np.exp(to_array(sinks).astype(q.dtype)[:, None, None] - m_i)
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
    l_i = l_i + torch.exp(sinks.to(stats)[:, None, None] - m_i)
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
    l_i += tl.exp(sink - m_i)
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
    l_i += tl.exp(sink - m_i)
l_i = tl.where(l_i == 0.0, 1.0, l_i)
""",
        ),
    ],
}
