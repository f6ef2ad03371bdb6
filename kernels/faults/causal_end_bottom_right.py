"""The causal loop ends at a bottom-right diagonal, the mask is top-left.

Kind            E
What is wrong   Lk - Lq is added to the end of the loop alone: with more keys than queries it
                only wastes time, with fewer the last keys are lost
Where seen      gittensor-ai-lab/sparkinfer#3 and tile-ai/tilelang#864: bound and mask disagree
                about the offset. Not in numpy_online, whose loop has no end of its own
Killed by       agreement, causal_prefix, constant_v, one_hot
Survives        calls that are not causal, and causal ones with no more queries than keys
"""

edits = {
    "fp32_stats": [
        (
            "end = min(len_k, rows.stop) if is_causal else len_k",
            "end = min(len_k, rows.stop + len_k - len_q) if is_causal else len_k",
        ),
    ],
    "triton_flash": [
        (
            "end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M)",
            "end_n = tl.minimum(len_k, (start_m + 1) * BLOCK_M + len_k - len_q)",
        ),
    ],
}
