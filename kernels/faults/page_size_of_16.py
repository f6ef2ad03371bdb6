"""Pages are taken for 16 keys long.

Kind            K
What is wrong   a page's size is a constant of the kernel, and the cache has
                another
Where seen      the class of tanishqkumar/ssd#22: the cache is read as if it were
                laid out otherwise
Killed by       agreement, sequence_independence, poison_memory
Survives        pages of 16, the usual size
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            """
at = table[b, (j // 16).clamp(max=table.shape[1] - 1)].long() * 16 + j % 16
page, place = (at // size).clamp(max=key.shape[0] - 1), at % size
""",
        ),
    ],
    "fp32_stats": [
        (
            "k, v = (pool[pages].flatten(0, 1)[:len_k] for pool in (key, value))",
            """
j = torch.arange(len_k)
at = table[b, (j // 16).clamp(max=table.shape[1] - 1)].long() * 16 + j % 16
at = at.clamp(max=key.shape[0] * size - 1)
k, v = (pool.flatten(0, 1)[at] for pool in (key, value))
""",
        ),
    ],
}
