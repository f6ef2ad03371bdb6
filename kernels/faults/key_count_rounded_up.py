"""Keys are counted up to a multiple of 16: the next head's first ones take part.

Kind            H
What is wrong   Lk is rounded up, as whole loads want it, and bounds the mask of the tail
                too: the rows after the last key are those of the next head
Where seen      vllm-project/vllm#42494 and #42496 (a partial block rounded up);
                microsoft/onnxruntime#20521 (rows that were never part of the sequence)
Killed by       agreement
Survives        Lk a multiple of 16, an attn_mask (whose width bounds the keys), Lk = 0
"""

ROUNDED_UP = """
if attn_mask is None:
    spare = -key.shape[2] % 16
    key, value = (
        torch.cat([x, x.flatten(0, 1).roll(-1, 0).reshape(x.shape)[:, :, :spare]], 2)
        for x in (key, value)
    )
"""

edits = {
    "numpy_naive": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            ROUNDED_UP + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "numpy_online": [
        (
            "q, k, v = to_array(query), to_array(key), to_array(value)",
            ROUNDED_UP + "q, k, v = to_array(query), to_array(key), to_array(value)",
        )
    ],
    "fp32_stats": [("len_k = key.shape[2]", ROUNDED_UP + "len_k = key.shape[2]")],
    "triton_flash": [
        ("len_k, head_dim_v = value.shape[2:]", ROUNDED_UP + "len_k, head_dim_v = value.shape[2:]")
    ],
}
