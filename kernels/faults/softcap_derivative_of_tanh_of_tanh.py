"""The derivative of the cap is formed from the tanh of the capped score.

Kind            P
What is wrong   1 - tanh^2 is formed of the score that is capped already: tanh is applied twice, and
                the derivative never falls below 0.42
Where seen      no public issue names it; Dao-AILab/flash-attention#1033 discusses from which of the
                scores at hand the derivative is to be had
Killed by       gradients
Survives        scores far below the cap; dV
"""

edits = {
    "fp32_backward": [
        (
            "slope = 1 - (s / softcap) ** 2",
            "slope = 1 - torch.tanh(s / softcap) ** 2",
        ),
    ],
    "triton_backward": [
        (
            "ds *= 1.0 - capped * capped",
            "ds *= 1.0 - tanh(capped) * tanh(capped)",
        ),
    ],
}
