"""The causal mask takes the query's place inside its block for its position.

Kind            E
What is wrong   start_m * BLOCK_M is left out, so that later blocks of queries see no more keys
                than the first
Where seen      gittensor-ai-lab/sparkinfer#3: the position is local to the chunk. Not in
                numpy_online, which has no blocks of queries
Killed by       agreement, equal_scores
Survives        calls that are not causal, no more queries than a block has
"""

edits = {
    "fp32_stats": [
        (
            "i = torch.arange(rows.start, rows.stop, device=device)[:, None]",
            "i = torch.arange(rows.stop - rows.start, device=device)[:, None]",
        ),
    ],
    "triton_flash": [
        (
            "visible &= cols[None, :] <= offs_m",
            "visible &= cols[None, :] <= offs_m - start_m * BLOCK_M",
        ),
    ],
}
