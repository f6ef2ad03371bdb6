"""Query heads of a group share the sink of their key head.

Kind            G
What is wrong   sinks are read at h // (Hq // Hkv), as keys are
Where seen      flashinfer-ai/flashinfer#4525 (an index of the group where one of the head is
                meant)
Killed by       agreement
Survives        Hkv = Hq; sinks that are equal within a group
"""

edits = {
    "numpy_online": [
        (
            "sink = np.broadcast_to(to_array(sinks).astype(q.dtype)[:, None, None], m_i.shape)",
            """
of_head = np.arange(heads) // (heads // key.shape[1])
sink = np.broadcast_to(to_array(sinks)[of_head].astype(q.dtype)[:, None, None], m_i.shape)
""",
        ),
    ],
    "fp32_stats": [
        (
            "m_i = sinks.to(stats)[:, None, None].expand_as(m_i)",
            """
of_head = torch.arange(heads, device=device) // (group if enable_gqa else 1)
m_i = sinks[of_head].to(stats)[:, None, None].expand_as(m_i)
""",
        ),
    ],
    "triton_flash": [
        (
            "m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_h)",
            "m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_hkv)",
        ),
    ],
}
