"""Every block of queries uses the mask rows of the first block.

Kind            G
What is wrong   the mask's row is counted within the block: start_m * BLOCK_M is missing
Where seen      gittensor-ai-lab/sparkinfer#3 used a row local to its chunk;
                pytorch/pytorch#187225 reads the rows of an earlier query beyond a certain
                length
Killed by       agreement
Survives        at most BLOCK_M queries; masks that are the same for all queries
"""

edits = {
    "fp32_stats": [
        (
            "mask = attn_mask[:, :, rows, cols]",
            "mask = attn_mask[:, :, : rows.stop - rows.start, cols]",
        ),
    ],
    "triton_flash": [
        ("mask_ptrs += m * stride_mm", "mask_ptrs += (m - start_m * BLOCK_M) * stride_mm"),
    ],
}
