"""The newest key of a cache is not seen.

Kind            K
What is wrong   cache_seqlens is read as the length before the step's own key was
                appended
Where seen      Dao-AILab/flash-attention#638: whether a length counts the appended
                key
Killed by       agreement, sequence_independence
Survives        a newest key of little weight; an empty cache
"""

edits = {
    "numpy_online": [
        (
            "j = torch.arange(len_k, device=key.device)",
            """
len_k = max(len_k - 1, 0)
j = torch.arange(len_k, device=key.device)
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            """
len_k = max(len_k - 1, 0)
pages = table[b, : -(-len_k // size)].long()
""",
        ),
    ],
}
