"""Keys of a sequence are read from where its queries begin.

Kind            J
What is wrong   the first token of a sequence is taken from cu_seqlens_q for K and
                V too, of which the number is right
Where seen      flashinfer-ai/flashinfer#4018 (review)
Killed by       agreement, sequence_independence
Survives        as many queries as keys, all that training packs; the first
                sequence
"""

edits = {
    "numpy_online": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_q, begin_q + end_k - begin_k)",
        ),
    ],
    "fp32_stats": [
        (
            "rows, cols = slice(begin_q, end_q), slice(begin_k, end_k)",
            "rows, cols = slice(begin_q, end_q), slice(begin_q, begin_q + end_k - begin_k)",
        ),
    ],
    "triton_decode": [
        (
            "K += first_k.to(tl.int64) * stride_kn",
            "K += tl.minimum(first_q, first_k).to(tl.int64) * stride_kn",
        ),
        (
            "V += first_k.to(tl.int64) * stride_vn",
            "V += tl.minimum(first_q, first_k).to(tl.int64) * stride_vn",
        ),
    ],
}
