"""Sequences after the 16th of a packed batch read its keys.

Kind            J
What is wrong   the sequence of a block is searched in four steps, which tell 16 apart
Where seen      the class of tile-ai/tilelang#2010 (review), where a block's sequence is not its
                own
Killed by       agreement, sequence_independence
Survives        up to 16 sequences; a test that packs a handful
"""

edits = {
    "numpy_online": [
        (
            "ends = (cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:])",
            """
own = torch.arange(len(cu_k) - 1).clamp(max=15)
ends = (cu_q[:-1], cu_q[1:], cu_k[own], cu_k[own + 1])
""",
        ),
    ],
    "fp32_stats": [
        (
            "ends = (cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:])",
            """
own = torch.arange(len(cu_k) - 1).clamp(max=15)
ends = (cu_q[:-1], cu_q[1:], cu_k[own], cu_k[own + 1])
""",
        ),
    ],
}
