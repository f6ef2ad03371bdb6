"""The cap is applied after ALiBi and the additive mask.

Kind            G
What is wrong   softcap tanh((s + bias) / softcap), while what is hidden stays so
Where seen      onnx/onnx#7865 is about this order; no kernel is named that keeps -inf
Killed by       agreement
Survives        calls without a bias; biases and scores far below the cap
"""

edits = {
    "numpy_online": [
        ("if softcap: ...", "if False: ..."),
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            """
if softcap:
    s = np.where(np.isneginf(s), s, softcap * np.tanh(s / softcap))
m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))
""",
        ),
    ],
    "fp32_stats": [
        ("if softcap: ...", "if False: ..."),
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            """
if softcap:
    s = torch.where(s.isneginf(), s, softcap * torch.tanh(s / softcap))
m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))
""",
        ),
    ],
    "triton_flash": [
        (
            "if softcap is not None: ...",
            "if False: ...",
        ),
        (
            "m_new = tl.maximum(m_i, tl.max(qk, 1))",
            """
if softcap is not None:
    qk = tl.where(qk == float("-inf"), qk, softcap * tanh(qk / softcap))
m_new = tl.maximum(m_i, tl.max(qk, 1))
""",
        ),
    ],
    "triton_decode": [
        (
            "if softcap is not None: ...",
            "if False: ...",
        ),
        (
            "m_new = tl.maximum(m_i, tl.max(qk, 1))",
            """
if softcap is not None:
    qk = tl.where(qk == float("-inf"), qk, softcap * tanh(qk / softcap))
m_new = tl.maximum(m_i, tl.max(qk, 1))
""",
        ),
    ],
}
