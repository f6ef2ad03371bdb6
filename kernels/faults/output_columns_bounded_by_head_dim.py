"""The output is stored only up to the head size of Q and K.

Kind            H
What is wrong   the epilogue bounds its columns by D where it has to by Dv: columns from D
                on hold what torch.empty gives
Where seen      pytorch/pytorch#133495 (one head size where the other was needed)
Killed by       agreement, poison_memory, poison_output
Survives        Dv <= D
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            """
out = torch.from_numpy(acc).new_empty(acc.shape).numpy()
out[..., : q.shape[-1]] = (acc / np.where(l_i == 0, 1, l_i))[..., : q.shape[-1]]
""",
        )
    ],
    "fp32_stats": [
        (
            "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)",
            """
o = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)
out[:, :, rows, :head_dim] = o[..., :head_dim]
""",
        )
    ],
    "triton_flash": [
        (
            """
tl.store(
    Out + offs_out * head_dim_v + offs_dv, out, mask=rows & (offs_dv < head_dim_v)
)
""",
            """
stored = rows & (offs_dv < tl.minimum(head_dim, head_dim_v))
tl.store(Out + offs_out * head_dim_v + offs_dv, out, mask=stored)
""",
        )
    ],
}
