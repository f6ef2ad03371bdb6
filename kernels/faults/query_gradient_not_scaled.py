"""dQ lacks the scale.

Kind            P
What is wrong   dQ = dS K is not multiplied by the scale of the scores, while dK is
Where seen      no public issue names it; a dQ that several programs add up is scaled where it is
                converted, a step that is easily left out
Killed by       gradients, gradient_homogeneity
Survives        scale = 1; equal values, where dQ is 0
"""

edits = {
    "fp32_backward": [
        (
            "dq, dk = dq * sm_scale, dk * sm_scale",
            "dk = dk * sm_scale",
        )
    ],
    "triton_backward": [
        (
            "dq = dq * sm_scale",
            "dq = dq * 1.0",
        )
    ],
}
