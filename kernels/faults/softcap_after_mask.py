"""The cap is applied to scores that are hidden already.

Kind            G
What is wrong   tanh takes -inf to -1, so that a hidden key has the score -softcap and not -inf
Where seen      onnx/onnx#7865 (the reference of the specification itself), flashinfer-
                ai/flashinfer#350
Killed by       agreement, poison_masked
Survives        calls that hide no key; caps so large that exp(-cap - m) is nothing, 50 in half
                precision
"""

edits = {
    "numpy_online": [
        ("if softcap: ...", "if False: ..."),
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            """
if softcap:
    s = softcap * np.tanh(s / softcap)
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
    s = softcap * torch.tanh(s / softcap)
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
    qk = softcap * tanh(qk / softcap)
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
    qk = softcap * tanh(qk / softcap)
m_new = tl.maximum(m_i, tl.max(qk, 1))
""",
        ),
    ],
}
