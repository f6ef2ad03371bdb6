"""The mask is read as if it were contiguous.

Kind            N
What is wrong   the strides of the mask are computed from its shape; an expanded one is seen
                and copied first
Where seen      the class of pytorch/pytorch#181133 and torch-spyre/torch-spyre#4331
                (views), here a mask that was sliced from a larger one
Killed by       agreement, strides
Survives        contiguous masks, as every constructor gives them; expanded ones; no mask
"""

READ_AS_CONTIGUOUS = """
if attn_mask is not None and 0 not in attn_mask.stride():
    attn_mask = attn_mask.as_strided(attn_mask.shape, attn_mask.contiguous().stride())
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
