"""The cap is applied to q.k before the scale.

Kind            G
What is wrong   scale softcap tanh(q.k / softcap), so that scores end at scale softcap
Where seen      no public issue names it; the counterpart of a mask that is added before the
                scale
Killed by       agreement
Survives        scale = 1; q.k far below the cap
"""

edits = {
    "numpy_online": [
        (
            "s = softcap * np.tanh(s / softcap)",
            """
s = q @ k[:, :, start_n:end_n].swapaxes(-1, -2)
s = sm_scale * softcap * np.tanh(s / softcap)
""",
        ),
    ],
    "fp32_stats": [
        (
            "s = softcap * torch.tanh(s / softcap)",
            "s = sm_scale * softcap * torch.tanh((q @ k.transpose(-1, -2)) / softcap)",
        ),
    ],
    "triton_flash": [
        (
            "qk = softcap * tanh(qk / softcap)",
            """
raw = tl.dot(q, tl.trans(k), input_precision="ieee")
qk = sm_scale * softcap * tanh(raw / softcap)
""",
        ),
    ],
    "triton_decode": [
        (
            "qk = softcap * tanh(qk / softcap)",
            """
raw = tl.dot(q, tl.trans(k), input_precision="ieee")
qk = sm_scale * softcap * tanh(raw / softcap)
""",
        ),
    ],
}
