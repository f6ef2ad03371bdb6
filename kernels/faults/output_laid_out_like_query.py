"""The output has the strides of Q, and is written as if it were contiguous.

Kind            N
What is wrong   torch.empty_like keeps the strides of a transposed q, and the kernel
                computes the output's addresses from its shape
Where seen      Dao-AILab/flash-attention commit d9a5cb29 (a gradient allocated like another
                tensor); Triton's tutorial, whose kernel takes the output's strides for that
                reason
Killed by       agreement
Survives        contiguous, padded and sliced q; Dv and D that differ; one head or one query
"""

edits = {
    "triton_flash": [
        (
            """
out = torch.empty(
    batch, heads, len_q, head_dim_v, dtype=query.dtype, device=query.device
)
""",
            """
out = torch.empty_like(query)
if head_dim_v != head_dim:
    out = query.new_empty(batch, heads, len_q, head_dim_v)
""",
        )
    ],
}
