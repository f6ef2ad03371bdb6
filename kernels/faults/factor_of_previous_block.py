"""A block of keys takes the factors of the block before.

Kind            Q
What is wrong   the index of the factor is advanced after the block that it belongs to
Where seen      ggml-org/llama.cpp#23693 and #26195: scales of another block
Killed by       agreement
Survives        factors that are the same for all blocks; one block
"""

edits = {
    "fp32_float8": [
        (
            "n = start_n // DESCALE_N",
            "n = max(start_n // DESCALE_N - 1, 0)",
        ),
    ],
    "triton_float8": [
        (
            "k_scale = tl.load(ks_ptrs + n // PER_N * stride_ksn, mask=visible, other=0.0)",
            (
                "k_scale = tl.load(ks_ptrs + tl.maximum(n // PER_N - 1, 0) * stride_ksn, "
                "mask=visible, other=0.0)"
            ),
        ),
        (
            "v_scale = tl.load(vs_ptrs + start_n // PER_N * stride_vsn)",
            "v_scale = tl.load(vs_ptrs + tl.maximum(start_n // PER_N - 1, 0) * stride_vsn)",
        ),
    ],
}
