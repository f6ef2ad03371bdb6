"""One warp's lanes own a column of the output each: those from 32 on stay 0.

Kind            H
What is wrong   the launch has min(Dv, 32) lanes and a lane's index is its column, so that
                nothing accumulates into the others
Where seen      mni-ml/framework#38 (half of the output and of the gradients is 0 for a head
                size of 64)
Killed by       agreement
Survives        Dv up to 32, the sizes of a unit test; values that are 0 there
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            """
acc = acc * alpha
acc[..., :32] += p @ v[:, :, start_n:end_n, :32]
""",
        )
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            """
acc = acc * alpha
acc[..., :32] += p.to(dtype).to(stats) @ v[..., :32]
""",
        )
    ],
    "triton_flash": [
        (
            "v = tl.load(v_ptrs, mask=(cols < len_k)[:, None] & (offs_dv < head_dim_v), other=0.0)",
            """
lanes = tl.minimum(head_dim_v, 32)
v = tl.load(v_ptrs, mask=(cols < len_k)[:, None] & (offs_dv < lanes), other=0.0)
""",
        )
    ],
}
