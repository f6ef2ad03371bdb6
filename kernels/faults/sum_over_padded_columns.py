"""The sum of a row sees the zeros of the padding, the maximum does not.

Kind            H
What is wrong   the loop that adds up l runs over the whole block, so that each padded key
                counts exp(0 - m); maximum and output are right
Where seen      FluxML/NNkernels.jl#16 (one loop of an online softmax without the bounds
                check of the others)
Killed by       agreement
Survives        Lk a multiple of the block, and rows whose maximum is far above 0
"""

edits = {
    "numpy_online": [
        (
            "l_i = l_i * alpha + p.sum(axis=-1, keepdims=True)",
            """
padded = np.pad(s, ((0, 0), (0, 0), (0, 0), (0, start_n + BLOCK_N - end_n)))
l_i = l_i * alpha + np.exp(padded - m_ref).sum(axis=-1, keepdims=True)
""",
        )
    ],
    "fp32_stats": [
        (
            "l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)",
            """
padded = torch.nn.functional.pad(s, (0, start_n + BLOCK_N - cols.stop))
l_i = l_i * alpha + torch.exp(padded - m_ref).sum(dim=-1, keepdim=True)
""",
        )
    ],
    "triton_flash": [
        (
            "l_i = l_i * alpha + tl.sum(p, 1)",
            """
padded = tl.where((cols < len_k)[None, :], qk, 0.0)
l_i = l_i * alpha + tl.sum(tl.exp(padded - m_ref[:, None]), 1)
""",
        )
    ],
}
