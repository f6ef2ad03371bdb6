"""The backward recomputes the weights without the boolean mask.

Kind            P
What is wrong   P = exp(S - lse) is formed for hidden keys too, whose weights are then not 0
Where seen      no public issue names it; forward and backward hide keys in code of their own
Killed by       gradients, value_gradient_sum
Survives        additive and causal masks; no mask; hidden keys far below the others
"""

edits = {
    "fp32_backward": [
        (
            "s = s.masked_fill(~mask, -math.inf)",
            "s = s",
        )
    ],
    "triton_backward": [
        (
            "visible = mask",
            "visible = visible & (mask | True)",
        )
    ],
}
