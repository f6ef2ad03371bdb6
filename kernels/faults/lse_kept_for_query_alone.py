"""lse is kept for the backward only where q requires a gradient.

Kind            P
What is wrong   the flag that decides whether lse is stored looks at one tensor; the backward of the
                others reads an empty lse
Where seen      pytorch/pytorch#148476 (looks at q, k and v, and not at the mask)
Killed by       partial_gradients
Survives        all three require a gradient; rows whose lse is 0
"""

edits = {
    "fp32_backward": [
        (
            "ctx.save_for_backward(query, key, value, out, lse)",
            (
                "ctx.save_for_backward(query, key, value, out, lse if "
                "ctx.needs_input_grad[0] else torch.zeros_like(lse))"
            ),
        )
    ],
    "triton_backward": [
        (
            "ctx.save_for_backward(query, key, value, out, lse)",
            (
                "ctx.save_for_backward(query, key, value, out, lse if "
                "ctx.needs_input_grad[0] else torch.zeros_like(lse))"
            ),
        )
    ],
}
