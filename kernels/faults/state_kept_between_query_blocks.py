"""The state of the block of queries before is where the next one starts.

Kind            B
What is wrong   m, l and acc are initialized once instead of for each block of queries, as in a
                persistent loop over tiles; each row also attends to what the row BLOCK_M
                before it saw
Where seen      flashinfer-ai/flashinfer#5029: an accumulator declared outside of a grid-stride
                loop. Not in numpy_online and triton_flash, where nobody owns two blocks of
                queries
Killed by       agreement, equal_scores, query_independence
Survives        no more queries than one block of them: BLOCK_M is 16 to 128
"""

edits = {
    "fp32_stats": [
        (
            "m_i = torch.full((*q.shape[:3], 1), -math.inf, dtype=stats, device=device)",
            (
                "m_i = m_i[:, :, : q.shape[2]] if start_m else torch.full((*q.shape[:3], 1), "
                "-math.inf, dtype=stats, device=device)"
            ),
        ),
        (
            "l_i = torch.zeros_like(m_i)",
            "l_i = l_i[:, :, : q.shape[2]] if start_m else torch.zeros_like(m_i)",
        ),
        (
            "acc = torch.zeros(*q.shape[:3], value.shape[3], dtype=stats, device=device)",
            (
                "acc = acc[:, :, : q.shape[2]] if start_m else torch.zeros(*q.shape[:3], "
                "value.shape[3], dtype=stats, device=device)"
            ),
        ),
    ],
}
