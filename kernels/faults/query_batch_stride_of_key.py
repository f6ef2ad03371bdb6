"""Q is read with the batch stride of K.

Kind            N
What is wrong   the batch stride of k stands where that of q has to; only where it is the
                smaller one, so that no address leaves q
Where seen      the class of Dao-AILab/flash-attention commits 9ee0ff1d and d9a5cb29 (one
                tensor read with another's strides)
Killed by       agreement
Survives        a batch of 1; Lq = Lk with as many key heads as query heads; Lk > Lq as it
                is injected here
"""

STRIDE_OF_KEY = """
smaller = min(query.stride(0), key.stride(0))
query = query.as_strided(query.shape, (smaller, *query.stride()[1:]))
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            STRIDE_OF_KEY + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            STRIDE_OF_KEY + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            STRIDE_OF_KEY + "dtype, device = query.dtype, query.device",
        )
    ],
    "triton_flash": [
        (
            "batch, heads, len_q, head_dim = query.shape",
            STRIDE_OF_KEY + "batch, heads, len_q, head_dim = query.shape",
        )
    ],
}
