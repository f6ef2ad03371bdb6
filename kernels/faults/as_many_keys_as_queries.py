"""A sequence has as many keys as queries.

Kind            J
What is wrong   the number of keys is computed from cu_seqlens_q, their first one
                from cu_seqlens_k
Where seen      the class of flashinfer-ai/flashinfer#4018
Killed by       agreement, sequence_independence
Survives        as many queries as keys, all that training packs
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_k, begin_k + end_q - begin_q)",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_k, begin_k + end_q - begin_q)",
        ),
    ],
}
