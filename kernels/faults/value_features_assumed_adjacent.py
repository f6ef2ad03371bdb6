"""The features of a row of V are taken to be adjacent.

Kind            N
What is wrong   the stride of the last axis is taken to be 1 without a check
Where seen      the class of pytorch/pytorch#181133 and #163597,
                torch-spyre/torch-spyre#4331 (views), for kernels that take no stride of the
                last axis
Killed by       agreement, poison_memory
Survives        every tensor whose last stride is 1, transposed and padded ones too; Dv = 1
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            """
value = value.as_strided(value.shape, (*value.stride()[:3], 1))
q, k, v = to_array(query), to_array(key), to_array(value)
""",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            """
value = value.as_strided(value.shape, (*value.stride()[:3], 1))
q, k, v = to_array(query), to_array(key), to_array(value)
""",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            """
value = value.as_strided(value.shape, (*value.stride()[:3], 1))
dtype, device = query.dtype, query.device
""",
        )
    ],
    "triton_flash": [
        (
            "v_ptrs += n[:, None] * stride_vn + offs_dv * stride_vd",
            "v_ptrs += n[:, None] * stride_vn + offs_dv",
        )
    ],
}
