"""The output is written over Q.

Kind            N
What is wrong   to save memory out takes the place of q where the shapes agree. Each block
                of queries is read before it is written, so that this call is right
Where seen      no public report at hand
Killed by       inputs_unmodified, repeat
Survives        Dv and D that differ; every test that does not use q again. In numpy_online
                float16 and bfloat16, which are copied when they are widened
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            """
same = q.shape == acc.shape
out = np.divide(acc, np.where(l_i == 0, 1, l_i), out=q if same else None)
""",
        )
    ],
    "fp32_stats": [
        (
            "out = torch.empty(batch, heads, len_q, value.shape[3], dtype=dtype, device=device)",
            """
out = query
if value.shape[3] != head_dim:
    out = torch.empty(batch, heads, len_q, value.shape[3], dtype=dtype, device=device)
""",
        )
    ],
    "triton_flash": [
        (
            """
out = torch.empty(
    batch, heads, len_q, head_dim_v, dtype=query.dtype, device=query.device
)
""",
            """
out = query
if head_dim_v != head_dim or not query.is_contiguous():
    out = query.new_empty(batch, heads, len_q, head_dim_v)
""",
        )
    ],
}
