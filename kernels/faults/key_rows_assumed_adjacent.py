"""One row of K is taken to follow the other at D elements.

Kind            N
What is wrong   batch, head and feature strides are honoured, the row stride is not: D
                stands for it
Where seen      the class of pytorch/pytorch#181133 and #163597,
                torch-spyre/torch-spyre#4331 (views)
Killed by       agreement, strides
Survives        contiguous tensors; one key
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            """
z, h, _, d = key.stride()
key = key.as_strided(key.shape, (z, h, key.shape[3] * d, d))
q, k, v = to_array(query), to_array(key), to_array(value)
""",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            """
z, h, _, d = key.stride()
key = key.as_strided(key.shape, (z, h, key.shape[3] * d, d))
q, k, v = to_array(query), to_array(key), to_array(value)
""",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            """
z, h, _, d = key.stride()
key = key.as_strided(key.shape, (z, h, key.shape[3] * d, d))
dtype, device = query.dtype, query.device
""",
        )
    ],
    "triton_flash": [
        (
            "k_ptrs += n[:, None] * stride_kn + offs_d * stride_kd",
            "k_ptrs += (n[:, None] * head_dim + offs_d) * stride_kd",
        ),
        ("k_ptrs += step_n * stride_kn", "k_ptrs += step_n * head_dim * stride_kd"),
    ],
}
