"""V is read with the strides of K.

Kind            N
What is wrong   the kernel takes one set of strides for both, since they come from one
                projection; where their shapes differ, V's own are taken
Where seen      Dao-AILab/flash-attention commits d9a5cb29 (dV allocated like K) and
                9ee0ff1d (one tensor read with another's strides)
Killed by       agreement, gqa_repeated_heads
Survives        k and v with one layout, whatever it is; D and Dv that differ
"""

STRIDES_OF_KEY = """
if value.shape == key.shape:
    value = value.as_strided(value.shape, key.stride())
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            STRIDES_OF_KEY + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            STRIDES_OF_KEY + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            STRIDES_OF_KEY + "dtype, device = query.dtype, query.device",
        )
    ],
    "triton_flash": [
        (
            "batch, heads, len_q, head_dim = query.shape",
            STRIDES_OF_KEY + "batch, heads, len_q, head_dim = query.shape",
        )
    ],
}
