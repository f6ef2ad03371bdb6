"""The maximum is taken before the mask is applied.

Kind            A
What is wrong   any reference gives the same softmax in real numbers; in floating point a
                hidden score far above the row's own makes all weights underflow
Where seen      no public issue names it: derivations of online softmax prove that any constant
                may be subtracted
Killed by       agreement, poison_masked, convexity, key_permutation
Survives        scores within 80 or so of each other, every row without a mask
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale
top = s.max(axis=-1, keepdims=True)
""",
        ),
        ("m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))", "m_new = np.maximum(m_i, top)"),
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            """
s = (q @ k.transpose(-1, -2)) * sm_scale
top = s.amax(dim=-1, keepdim=True)
""",
        ),
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            "m_new = torch.maximum(m_i, top)",
        ),
    ],
    "triton_flash": [
        (
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale',
            """
qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale
top = tl.max(qk, 1)
""",
        ),
        ("m_new = tl.maximum(m_i, tl.max(qk, 1))", "m_new = tl.maximum(m_i, top)"),
    ],
    "numpy_naive": [
        (
            "s = (q @ k.swapaxes(-1, -2)) * sm_scale",
            """
s = (q @ k.swapaxes(-1, -2)) * sm_scale
raw = s
""",
        ),
        (
            "m = s.max(axis=-1, keepdims=True, initial=-np.inf)",
            "m = raw.max(axis=-1, keepdims=True, initial=-np.inf)",
        ),
    ],
}
