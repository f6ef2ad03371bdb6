"""Loads of V are bounded by the head size of Q and K.

Kind            H
What is wrong   D stands where Dv has to: columns of V from D on are taken for padding, and
                are 0 in the output
Where seen      pytorch/pytorch#133495 (an index of K where V's was needed, in flex
                attention)
Killed by       agreement
Survives        Dv <= D, so that nearly every test does: MLA's 192 and 128 too
"""

edits = {
    "numpy_naive": [
        (
            "p = p / np.where(l == 0, 1, l)",
            """
p = p / np.where(l == 0, 1, l)
v = np.where(np.arange(v.shape[-1]) < q.shape[-1], v, 0).astype(q.dtype)
""",
        )
    ],
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            """
tile = np.where(np.arange(v.shape[-1]) < q.shape[-1], v[:, :, start_n:end_n], 0)
acc = acc * alpha + p @ tile.astype(q.dtype)
""",
        )
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            """
v[..., head_dim:] = 0
acc = acc * alpha + p.to(dtype).to(stats) @ v
""",
        )
    ],
    "triton_flash": [
        (
            "v = tl.load(v_ptrs, mask=(cols < len_k)[:, None] & (offs_dv < head_dim_v), other=0.0)",
            """
width = tl.minimum(head_dim, head_dim_v)
v = tl.load(v_ptrs, mask=(cols < len_k)[:, None] & (offs_dv < width), other=0.0)
""",
        )
    ],
}
