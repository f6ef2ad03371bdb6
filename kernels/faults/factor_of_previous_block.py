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
}
