"""The backward caps the scores and leaves out the derivative of the cap.

Kind            P
What is wrong   dS is that of the capped score, and is not multiplied by 1 - tanh^2 on its way to q
                and k
Where seen      Dao-AILab/flash-attention#1025 and #1033 (the softcap came first, its backward in
                another change), #2402 (so again in FA4)
Killed by       gradients
Survives        scores far below the cap; dV
"""

edits = {
    "fp32_backward": [
        (
            "ds = ds * slope",
            "ds = ds * 1.0",
        ),
    ],
    "triton_backward": [
        (
            "ds *= 1.0 - capped * capped",
            "ds *= 1.0",
        ),
    ],
}
