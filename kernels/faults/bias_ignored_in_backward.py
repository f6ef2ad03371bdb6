"""The backward recomputes the weights without the mask's bias.

Kind            P
What is wrong   P = exp(S - lse) is formed from scores that lack what the additive mask adds, -inf
                included
Where seen      no public issue names it; forward and backward build their scores apart, and an
                option that is added to one is missing in the other
Killed by       gradients, value_gradient_sum
Survives        boolean masks; a bias of 0
"""

edits = {
    "fp32_backward": [
        (
            "s = s + mask.to(stats)",
            "s = s",
        )
    ],
    "triton_backward": [
        (
            "qk += mask.to(tl.float32)",
            "qk += mask.to(tl.float32) * 0.0",
        )
    ],
}
