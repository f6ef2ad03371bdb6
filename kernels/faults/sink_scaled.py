"""The sink is multiplied by the scale.

Kind            G
What is wrong   the sink is treated as a product of a query and a key
Where seen      no public issue names it; the counterpart of a mask that is added before the
                scale
Killed by       agreement
Survives        scale = 1; sinks of 0; sinks far below the scores
"""

edits = {
    "numpy_online": [
        (
            "sink = np.broadcast_to(to_array(sinks).astype(q.dtype)[:, None, None], m_i.shape)",
            """
sink = np.broadcast_to(to_array(sinks).astype(q.dtype)[:, None, None], m_i.shape)
sink = sink * sm_scale
""",
        ),
    ],
    "fp32_stats": [
        (
            "m_i = sinks.to(stats)[:, None, None].expand_as(m_i)",
            "m_i = (sinks.to(stats)[:, None, None] * sm_scale).expand_as(m_i)",
        ),
    ],
    "triton_flash": [
        (
            "m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_h)",
            "m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_h) * sm_scale",
        ),
    ],
}
