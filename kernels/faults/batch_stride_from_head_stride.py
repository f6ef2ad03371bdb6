"""Batch and head are one index, multiplied with the head's stride.

Kind            N
What is wrong   q is addressed by (b H + h) stride_h, which holds for [B, H, L, D] in memory
                and not for [B, L, H, D]
Where seen      Triton's tutorial 06-fused-attention until it took batch strides; the class
                of pytorch/pytorch#181133
Killed by       agreement, strides
Survives        contiguous tensors, padded rows too; a batch of 1
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            """
stride_b = query.shape[1] * query.stride(1)
query = query.as_strided(query.shape, (stride_b, *query.stride()[1:]))
q, k, v = to_array(query), to_array(key), to_array(value)
""",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            """
stride_b = query.shape[1] * query.stride(1)
query = query.as_strided(query.shape, (stride_b, *query.stride()[1:]))
q, k, v = to_array(query), to_array(key), to_array(value)
""",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            """
stride_b = query.shape[1] * query.stride(1)
query = query.as_strided(query.shape, (stride_b, *query.stride()[1:]))
dtype, device = query.dtype, query.device
""",
        )
    ],
    "triton_flash": [
        (
            "q_ptrs = Q + off_z * stride_qz + off_h * stride_qh",
            "q_ptrs = Q + off_hz * stride_qh",
        )
    ],
}
