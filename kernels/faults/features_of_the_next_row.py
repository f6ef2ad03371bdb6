"""A head size that is padded to a power of two is filled up from the next row.

Kind            H
What is wrong   loads of q and k are bounded by the padded head size, so that a row goes on
                in its successor and the surplus features join the dot product
Where seen      66RING/tiny-flash-attention#12 (no mask over D: wrong for D = 63)
Killed by       agreement
Survives        head sizes that are powers of two; q or k whose next row is 0
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
spare = max(16, 1 << (q.shape[-1] - 1).bit_length()) - q.shape[-1]
q_next, k_next = (np.roll(x, -1, axis=2)[..., :spare] for x in (q, k))
s = q @ k[:, :, start_n:end_n].swapaxes(-1, -2)
s = (s + q_next @ k_next[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale
""",
        )
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            """
sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale
spare = max(16, 1 << (head_dim - 1).bit_length()) - head_dim
query, key = (torch.cat([x, x.roll(-1, 2)[..., :spare]], -1) for x in (query, key))
""",
        )
    ],
    "triton_flash": [
        (
            "q = tl.load(q_ptrs, mask=rows & (offs_d < head_dim), other=0.0)",
            """
inside = (offs_m < len_q - 1) & (offs_d < 2 * head_dim)
q = tl.load(q_ptrs, mask=rows & ((offs_d < head_dim) | inside), other=0.0)
""",
        ),
        (
            "k = tl.load(k_ptrs, mask=(cols < len_k)[:, None] & (offs_d < head_dim), other=0.0)",
            """
inside = (cols < len_k - 1)[:, None] & (offs_d < 2 * head_dim)
loaded = (cols < len_k)[:, None] & (offs_d < head_dim) | inside
k = tl.load(k_ptrs, mask=loaded, other=0.0)
""",
        ),
    ],
}
