"""The backward takes the forward's lse for one to base 2, and multiplies it by log2(e).

Kind            P
What is wrong   weights are exp(S - lse log2(e)) where exp(S - lse) belongs: the two passes disagree
                about the base of lse
Where seen      flashinfer-ai/flashinfer#50 (lse to base 2, undocumented); kernels that compute with
                exp2 convert it in one pass and forget it in the other
Killed by       gradients, value_gradient_sum
Survives        an lse of 0; no forward check sees it
"""

edits = {
    "fp32_backward": [
        (
            "p = torch.exp(s - lse_ref[:, :, rows])",
            "p = torch.exp(s - lse_ref[:, :, rows] * math.log2(math.e))",
        )
    ],
    "triton_backward": [
        (
            "p = tl.exp(qk - lse[:, None])",
            "p = tl.exp(qk - lse[:, None] * 1.4426950408889634)",
        )
    ],
}
