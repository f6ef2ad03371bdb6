"""tanh of the score is multiplied by the score, not by the cap.

Kind            G
What is wrong   s tanh(s / softcap), which is even in s and bounded by nothing
Where seen      Dao-AILab/flash-attention#2396, fixed in #2402; its tests had softcap at 0
Killed by       agreement
Survives        tests at softcap = 0; scores of 0
"""

edits = {
    "numpy_online": [
        ("s = softcap * np.tanh(s / softcap)", "s = s * np.tanh(s / softcap)"),
    ],
    "fp32_stats": [
        ("s = softcap * torch.tanh(s / softcap)", "s = s * torch.tanh(s / softcap)"),
    ],
    "triton_flash": [
        (
            "qk = softcap * tanh(qk / softcap)",
            "qk = qk * tanh(qk / softcap)",
        ),
    ],
    "triton_decode": [
        (
            "qk = softcap * tanh(qk / softcap)",
            "qk = qk * tanh(qk / softcap)",
        ),
    ],
}
