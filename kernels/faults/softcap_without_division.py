"""tanh is taken of the score, not of the score over the cap.

Kind            G
What is wrong   softcap tanh(s): all scores beyond 2 or so become the cap
Where seen      Dao-AILab/flash-attention#2396 (the other half of the formula wrong)
Killed by       agreement
Survives        a cap of 1; equal scores, but for the lse
"""

edits = {
    "numpy_online": [
        ("s = softcap * np.tanh(s / softcap)", "s = softcap * np.tanh(s)"),
    ],
    "fp32_stats": [
        ("s = softcap * torch.tanh(s / softcap)", "s = softcap * torch.tanh(s)"),
    ],
    "triton_flash": [
        (
            "qk = softcap * tanh(qk / softcap)",
            "qk = softcap * tanh(qk)",
        ),
    ],
    "triton_decode": [
        (
            "qk = softcap * tanh(qk / softcap)",
            "qk = softcap * tanh(qk)",
        ),
    ],
}
