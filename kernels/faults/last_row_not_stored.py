"""The last query's output is not stored.

Kind            H
What is wrong   the epilogue's predicate is off by one: i < Lq - 1, so that the last row
                holds what torch.empty gives; its lse is right
Where seen      66RING/tiny-flash-attention#12 (the predicate of the copy-out);
                flashinfer-ai/flashinfer#1206 and #1533 (rows that are neither computed nor
                zeroed)
Killed by       agreement
Survives        memory that happens to hold the last call's result, as a caching allocator's
                does when a test calls twice
"""

edits = {
    "fp32_stats": [
        (
            "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)",
            """
o = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)
stored = slice(start_m, min(rows.stop, len_q - 1))
out[:, :, stored] = o[:, :, : stored.stop - start_m]
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
stored = (offs_m < len_q - 1) & (offs_dv < head_dim_v)
tl.store(Out + offs_out * head_dim_v + offs_dv, out, mask=stored)
""",
        )
    ],
}
