"""Q is read as if it were contiguous.

Kind            N
What is wrong   the kernel computes addresses from the shape of q and ignores its strides
Where seen      pytorch/pytorch#181133 and #163597 (permuted views on MPS),
                torch-spyre/torch-spyre#4331
Killed by       agreement, strides
Survives        contiguous tensors, which is what torch.randn gives; one head or one query
                with contiguous features
"""

READ_AS_CONTIGUOUS = """
query = query.as_strided(query.shape, query.contiguous().stride())
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            READ_AS_CONTIGUOUS + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            READ_AS_CONTIGUOUS + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            READ_AS_CONTIGUOUS + "dtype, device = query.dtype, query.device",
        )
    ],
    "triton_flash": [
        (
            "batch, heads, len_q, head_dim = query.shape",
            READ_AS_CONTIGUOUS + "batch, heads, len_q, head_dim = query.shape",
        )
    ],
}
