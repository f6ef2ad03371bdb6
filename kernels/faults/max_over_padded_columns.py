"""The running maximum sees the zeros of the padding, the sum does not.

Kind            H
What is wrong   the maximum is taken over the whole block before the tail is hidden, so that
                m is at least 0 and every weight of a row of very negative scores underflows
Where seen      the other half of FluxML/NNkernels.jl#16, where one of the loops of an
                online softmax has another bound than the rest
Killed by       agreement, causal_prefix, score_shift
Survives        scores whose maximum is not far below 0: rounding apart, any m gives the
                same result. randn never leaves that range
"""

edits = {
    "numpy_online": [
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            """
padded = np.pad(s, ((0, 0), (0, 0), (0, 0), (0, start_n + BLOCK_N - end_n)))
m_new = np.maximum(m_i, padded.max(axis=-1, keepdims=True))
""",
        )
    ],
    "fp32_stats": [
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            """
padded = torch.nn.functional.pad(s, (0, start_n + BLOCK_N - cols.stop))
m_new = torch.maximum(m_i, padded.amax(dim=-1, keepdim=True))
""",
        )
    ],
    "triton_flash": [
        (
            "m_new = tl.maximum(m_i, tl.max(qk, 1))",
            "m_new = tl.maximum(m_i, tl.max(tl.where((cols < len_k)[None, :], qk, 0.0), 1))",
        )
    ],
}
