"""ALiBi's slopes are read as if they were contiguous.

Kind            N
What is wrong   slope h is read h numbers after the first; the slopes are a column of a matrix
                of what a head has, or every second number. Expanded ones are copied first
Where seen      the class of pytorch/pytorch#181133 (views)
Killed by       agreement, strides, poison_memory
Survives        slopes as a constructor gives them; one head
"""

READ_AS_CONTIGUOUS = """
if alibi_slopes is not None and alibi_slopes.stride(0):
    alibi_slopes = alibi_slopes.as_strided(alibi_slopes.shape, (1,))
"""

_FIRST = {
    "numpy_naive": "q, k, v = to_array(query), to_array(key), to_array(value)",
    "numpy_online": "q, k, v = to_array(query), to_array(key), to_array(value)",
    "fp32_stats": "dtype, device = query.dtype, query.device",
    "triton_flash": "batch, heads, len_q, head_dim = query.shape",
    "triton_decode": "batch, heads, len_q, head_dim = query.shape",
}

edits = {kernel: [(first, READ_AS_CONTIGUOUS + first)] for kernel, first in _FIRST.items()}
