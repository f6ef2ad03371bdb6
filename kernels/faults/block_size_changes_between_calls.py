"""Every second call uses another block size.

Kind            O
What is wrong   an autotuner that still measures runs a different configuration each time: each
                result is within the bound, and no two agree bit for bit
Where seen      Dao-AILab/flash-attention#2244, #746 and #429: deterministic=True that was not,
                by the order of additions
Killed by       poison_output, repeat, poison_memory
Survives        every comparison with a tolerance; one block of keys; sums of few bits, which
                are exact in any order
"""

edits = {
    "numpy_online": [
        (
            "starts = range(first, last, BLOCK_N)",
            (
                "attention.count = getattr(attention, 'count', 0) + 1\n"
                "if attention.count % 2 == 0:\n"
                "    BLOCK_N = 8\n"
                "starts = range(first, last, BLOCK_N)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            (
                "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale\n"
                "attention.count = getattr(attention, 'count', 0) + 1\n"
                "if attention.count % 2 == 0:\n"
                "    BLOCK_N = 8"
            ),
        ),
    ],
    "triton_flash": [
        (
            "num_blocks_m = triton.cdiv(len_q, BLOCK_M)",
            (
                "num_blocks_m = triton.cdiv(len_q, BLOCK_M)\n"
                "attention.count = getattr(attention, 'count', 0) + 1\n"
                "if attention.count % 2 == 0:\n"
                "    BLOCK_N = 16 if BLOCK_N > 16 else 32"
            ),
        ),
    ],
}
