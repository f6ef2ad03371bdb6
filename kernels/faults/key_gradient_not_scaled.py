"""dK lacks the scale.

Kind            P
What is wrong   dK = dS^T Q is not multiplied by the scale of the scores, while dQ is
Where seen      no public issue names it; kernels that fold the scale into q get dK scaled for
                nothing, and lose it when q is loaded anew
Killed by       gradients, gradient_homogeneity
Survives        scale = 1; equal values, where dK is 0
"""

edits = {
    "fp32_backward": [
        (
            "dq, dk = dq * sm_scale, dk * sm_scale",
            "dq = dq * sm_scale",
        )
    ],
    "triton_backward": [
        (
            "dk = dk * sm_scale",
            "dk = dk * 1.0",
        )
    ],
}
