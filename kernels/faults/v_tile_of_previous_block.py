"""P is multiplied by the V tile of the block before.

Kind            O
What is wrong   the prefetch of V lags by one stage: the first block is right, each later one
                uses its predecessor's values
Where seen      ggml-org/llama.cpp#13430 and #13415 (V loaded wrongly for some numbers of
                stages); ashalliants/ninfer-3090#49 (a tile read before its copy had arrived)
Killed by       agreement
Survives        one block of keys; V that is the same for all keys, or repeats with the block
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            (
                "at = max(start_n - BLOCK_N, 0)\n"
                "acc = acc * alpha + p @ v[:, :, at : at + end_n - start_n]"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "k, v = key[:, :, cols].to(stats), value[:, :, cols].to(stats)",
            (
                "k, at = key[:, :, cols].to(stats), max(start_n - BLOCK_N, 0)\n"
                "v = value[:, :, at : at + cols.stop - cols.start].to(stats)"
            ),
        ),
    ],
    "triton_flash": [
        ("v_ptrs += step_n * stride_vn", ("if start_n > 0:\n    v_ptrs += step_n * stride_vn")),
    ],
}
