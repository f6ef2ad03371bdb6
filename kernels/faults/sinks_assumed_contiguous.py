"""The sinks are read as if they were contiguous.

Kind            N
What is wrong   the sink of head h is read h numbers after the first; the sinks are a column of a
                matrix, or every second number. Expanded ones are copied first
Where seen      the class of pytorch/pytorch#181133 (views)
Killed by       agreement, strides, poison_memory
Survives        sinks that are a parameter of their own, as in gpt-oss; one head
"""

READ_AS_CONTIGUOUS = """
if sinks is not None and sinks.stride(0):
    sinks = sinks.as_strided(sinks.shape, (1,))
"""

_FIRST = {
    "numpy_naive": "q, k, v = to_array(query), to_array(key), to_array(value)",
    "numpy_online": "q, k, v = to_array(query), to_array(key), to_array(value)",
    "fp32_stats": "dtype, device = query.dtype, query.device",
    "triton_flash": "batch, heads, len_q, head_dim = query.shape",
    "triton_decode": "batch, heads, len_q, head_dim = query.shape",
}

edits = {kernel: [(first, READ_AS_CONTIGUOUS + first)] for kernel, first in _FIRST.items()}
