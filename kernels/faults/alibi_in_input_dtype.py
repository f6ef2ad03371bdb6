"""ALiBi is rounded to the input dtype.

Kind            C
What is wrong   slope times distance is made once as a tensor of the query's dtype, and so has
                11 or 8 bits
Where seen      no public issue names it; keras-team/keras#22783 converts the bias to the
                query's dtype
Killed by       agreement
Survives        float32 and float64; slopes that are powers of two in sequences of up to 256
                keys, the usual ones
"""

edits = {
    "numpy_online": [
        (
            "s = s - slopes * np.abs(offset).astype(q.dtype)",
            """
near = slopes * np.abs(offset).astype(q.dtype)
s = s - to_array(torch.from_numpy(near).to(query.dtype)).astype(q.dtype)
""",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            """
near = alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)
s = s - near.to(dtype).to(stats)
""",
        ),
    ],
    "triton_flash": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            """
near = slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)
qk -= near.to(q.dtype).to(tl.float32)
""",
        ),
    ],
    "triton_decode": [
        (
            "qk -= slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)",
            """
near = slope * tl.abs(offs_m + shift - cols[None, :]).to(tl.float32)
qk -= near.to(q.dtype).to(tl.float32)
""",
        ),
    ],
}
