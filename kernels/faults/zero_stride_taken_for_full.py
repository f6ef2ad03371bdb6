"""An expanded K is read as if its repeated heads were there.

Kind            N
What is wrong   a stride of 0 is falsy, and `stride or default` puts the contiguous one in
                its place. Reads beyond the tensor give 0, as bounds-checked loads do
Where seen      the class of pytorch/pytorch#139462 (a broadcast batch gives zeros)
Killed by       agreement
Survives        tensors that are not expanded; one head and one batch element
"""

FULL = """
if 0 in key.stride():
    once = key[:1] if key.stride(0) == 0 else key[:, :1]
    full = key.new_zeros(key.numel())
    full[: once.numel()] = once.flatten()
    key = full.view(key.shape)
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            FULL + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            FULL + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "fp32_stats": [
        (
            "dtype, device = query.dtype, query.device",
            FULL + "dtype, device = query.dtype, query.device",
        )
    ],
    "triton_flash": [
        (
            "batch, heads, len_q, head_dim = query.shape",
            FULL + "batch, heads, len_q, head_dim = query.shape",
        )
    ],
}
