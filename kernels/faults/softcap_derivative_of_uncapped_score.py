"""The derivative of the cap is formed from the score before it is capped.

Kind            P
What is wrong   1 - (s / cap)^2 is formed of the raw score s, where 1 - tanh^2(s / cap) belongs: it
                falls without limit, and below 0
Where seen      no public issue names it; Dao-AILab/flash-attention#1033 stores the derivative right
                after the cap, one line after a tensor that still holds the other scores
Killed by       gradients
Survives        scores far below the cap; dV
"""

edits = {
    "fp32_backward": [
        (
            "s = softcap * torch.tanh(s / softcap)",
            """
uncapped = s
s = softcap * torch.tanh(s / softcap)
""",
        ),
        (
            "slope = 1 - (s / softcap) ** 2",
            "slope = 1 - (uncapped / softcap) ** 2",
        ),
    ],
    "triton_backward": [
        (
            "capped = tanh(qk / softcap)",
            """
uncapped = qk / softcap
capped = tanh(uncapped)
""",
        ),
        (
            "ds *= 1.0 - capped * capped",
            "ds *= 1.0 - uncapped * uncapped",
        ),
    ],
}
