"""The accumulator is multiplied by alpha twice.

Kind            B
What is wrong   once where the block begins and once more before its product is added; l only
                once
Where seen      no public issue names it; pipelined kernels move the correction of acc to
                another stage, where it can be left in both
Killed by       agreement, key_doubling, key_permutation
Survives        one block alone, rows whose maximum is in their first block
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            "acc = acc * alpha * alpha + p @ v[:, :, start_n:end_n]",
        ),
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc * alpha * alpha + p.to(dtype).to(stats) @ v",
        ),
    ],
    "triton_flash": [("acc = acc * alpha[:, None]", "acc = acc * alpha[:, None] * alpha[:, None]")],
}
