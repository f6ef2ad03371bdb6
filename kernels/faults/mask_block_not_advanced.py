"""Every block of keys uses the mask of the first block.

Kind            G
What is wrong   the mask's pointer is not advanced with those of K and V
Where seen      pytorch/pytorch#187225 and ggml-org/llama.cpp#24912: offsets into the mask that
                go wrong while those into K are right
Killed by       agreement, key_doubling
Survives        sequences of at most one block, where most mask tests live; a mask that repeats
                with the block
"""

edits = {
    "numpy_online": [
        ("block = mask[..., start_n:end_n]", "block = mask[..., : end_n - start_n]"),
    ],
    "fp32_stats": [
        (
            "mask = attn_mask[:, :, rows, cols]",
            "mask = attn_mask[:, :, rows, : cols.stop - cols.start]",
        ),
    ],
    "triton_flash": [
        ("mask_ptrs += step_n * stride_mn", "pass"),
    ],
}
