"""Every key that the block table has room for is seen.

Kind            K
What is wrong   the capacity of the cache is taken for the length of the sequence
Where seen      meta-pytorch/gpt-fast#233
Killed by       agreement, sequence_independence, poison_memory
Survives        full caches; V all ones, and caches of zeros where scores are low
"""

edits = {
    "numpy_online": [
        (
            "j = torch.arange(len_k, device=key.device)",
            """
len_k = table.shape[1] * size
j = torch.arange(len_k, device=key.device)
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            """
len_k = table.shape[1] * size
pages = table[b, : -(-len_k // size)].long()
""",
        ),
    ],
}
