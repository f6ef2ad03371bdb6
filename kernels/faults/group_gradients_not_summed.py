"""dK and dV of a key head are those of its first query head.

Kind            P
What is wrong   the parts of the query heads that share a key head are not added up
Where seen      marin-community/levanter#449 (broadcast in the forward pass, no reduction in the
                backward)
Killed by       gradients, value_gradient_sum, gradient_homogeneity
Survives        Hkv = Hq; dq
"""

edits = {
    "fp32_backward": [
        (
            "dk = dk.unflatten(1, (kv_heads, group)).sum(dim=2)",
            "dk = dk.unflatten(1, (kv_heads, group))[:, :, 0]",
        ),
        (
            "dv = dv.unflatten(1, (kv_heads, group)).sum(dim=2)",
            "dv = dv.unflatten(1, (kv_heads, group))[:, :, 0]",
        ),
    ],
    "triton_backward": [
        (
            "for g in range(group): ...",
            "for g in range(1): ...",
        )
    ],
}
