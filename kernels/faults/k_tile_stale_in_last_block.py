"""The last block's scores come from the K tile of the block before.

Kind            O
What is wrong   the loop stops prefetching one iteration too early, and the last iteration reads
                the buffer as it is
Where seen      ggml-org/llama.cpp#13430 and ashalliants/ninfer-3090#49: a stage of the pipeline
                that holds the previous tile
Killed by       agreement, causal_prefix, key_permutation
Survives        one block of keys; keys that repeat with the block; equal scores
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            (
                "at = start_n - BLOCK_N if start_n and end_n == len_k else start_n\n"
                "s = (q @ k[:, :, at : at + end_n - start_n].swapaxes(-1, -2)) * sm_scale"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "k, v = key[:, :, cols].to(stats), value[:, :, cols].to(stats)",
            (
                "at = start_n - BLOCK_N if start_n and cols.stop == len_k else start_n\n"
                "k, v = key[:, :, at : at + cols.stop - start_n].to(stats), value[:, :,"
                " cols].to(stats)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "k_ptrs += step_n * stride_kn",
            ("if start_n + 2 * BLOCK_N < end_n:\n    k_ptrs += step_n * stride_kn"),
        ),
    ],
}
