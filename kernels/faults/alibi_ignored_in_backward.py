"""The backward recomputes the weights without ALiBi.

Kind            P
What is wrong   P = exp(S - lse) is formed of scores that lack -slope |i + Lk - Lq - j|
Where seen      no public issue names it; forward and backward build their scores apart
Killed by       gradients, value_gradient_sum
Survives        slopes of 0; keys at the query's own place; no forward check sees it
"""

edits = {
    "fp32_backward": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            "s = s - 0.0",
        ),
    ],
    "triton_backward": [
        (
            "slopes = None if slopes is None else slopes.contiguous()",
            "slopes = None",
        ),
    ],
}
