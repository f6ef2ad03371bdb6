"""Keys are shared out in as many parts as the batch has items, and the remainder is dropped.

Kind            R
What is wrong   the length of a split is Lk // batch, rounded down, and there are batch splits
Where seen      deepseek-ai/FlashMLA#212, sgl-project/sgl-flash-attn#43,
                pegainfer-project/pegainfer#613 and flashinfer-ai/flashinfer#696 choose splits
                by the batch, there without losing keys
Killed by       agreement, key_permutation
Survives        a batch of one, or one that divides Lk, as powers of two do; last keys without
                weight
"""

edits = {
    "numpy_online": [
        (
            "starts = range(first, last, BLOCK_N)",
            ("last = min(last, len_k - len_k % batch)\nstarts = range(first, last, BLOCK_N)"),
        ),
    ],
    "fp32_stats": [
        (
            "starts = range(first, min(end, last), BLOCK_N)",
            (
                "last = min(last, len_k - len_k % batch)\n"
                "starts = range(first, min(end, last), BLOCK_N)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "num_blocks_m = triton.cdiv(len_q, BLOCK_M)",
            ("num_blocks_m = triton.cdiv(len_q, BLOCK_M)\nlen_k -= len_k % batch"),
        ),
    ],
    "triton_decode": [
        (
            "num_blocks_m = triton.cdiv(longest_q * group, BLOCK_M)",
            """
num_blocks_m = triton.cdiv(longest_q * group, BLOCK_M)
len_k -= len_k % batch
""",
        ),
    ],
}
