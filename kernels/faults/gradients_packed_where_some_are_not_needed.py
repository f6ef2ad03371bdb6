"""Where only some gradients are asked for, they are returned in the first slots.

Kind            P
What is wrong   the backward returns a list of those that are needed, in which dK stands where dQ
                belongs
Where seen      no public issue names it; the order of what a torch.autograd.Function returns is
                checked by nobody but its user
Killed by       partial_gradients
Survives        all three require a gradient, which is the usual case
"""

edits = {
    "fp32_backward": [
        (
            "gradients = (dq.to(dtype), dk.to(dtype), dv.to(dtype))",
            (
                "needed = [g.to(dtype) for g, asked in zip((dq, dk, dv), "
                "ctx.needs_input_grad) if asked]\n"
                "gradients = (*needed, None, None, None)[:3]"
            ),
        )
    ],
    "triton_backward": [
        (
            "return dq, dk, dv, None",
            (
                "needed = [g for g, asked in zip((dq, dk, dv), ctx.needs_input_grad) "
                "if asked]\n"
                "return *(*needed, None, None, None)[:3], None"
            ),
        )
    ],
}
