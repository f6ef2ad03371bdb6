"""V is read from the start of its storage.

Kind            N
What is wrong   the address is that of the storage, not of the tensor's first element, which
                is elsewhere in a slice
Where seen      the class of torch-spyre/torch-spyre#4331 (views)
Killed by       agreement, strides
Survives        tensors that are not slices; V that is constant
"""

FROM_THE_START = """
value = value.as_strided(value.shape, value.stride(), 0)
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            FROM_THE_START + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            FROM_THE_START + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            FROM_THE_START + "dtype, device = query.dtype, query.device",
        )
    ],
    "triton_flash": [
        (
            "batch, heads, len_q, head_dim = query.shape",
            FROM_THE_START + "batch, heads, len_q, head_dim = query.shape",
        )
    ],
}
