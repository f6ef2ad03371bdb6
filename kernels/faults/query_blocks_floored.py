"""The queries after the last whole block are never computed.

Kind            H
What is wrong   the grid has Lq // BLOCK_M blocks, and 1 at least, where it has to be
                rounded up: the rows left over hold what torch.empty gives
Where seen      jax-ml/jax#27224 and #23819 (lengths that are no multiple of the block);
                66RING/tiny-flash-attention#12
Killed by       agreement, poison_memory
Survives        Lq below one block or a multiple of it: every test with lengths that are
                powers of two
"""

edits = {
    "fp32_stats": [
        (
            "for start_m in range(0, len_q, BLOCK_M): ...",
            "for start_m in range(0, max(1, len_q // BLOCK_M) * BLOCK_M, BLOCK_M): ...",
        )
    ],
    "triton_flash": [
        (
            "num_blocks_m = triton.cdiv(len_q, BLOCK_M)",
            "num_blocks_m = max(1, len_q // BLOCK_M)",
        )
    ],
}
