"""A block of keys reads on beyond its page.

Kind            K
What is wrong   the page of a block's first key is looked up, and 32 keys are read
                from there, whatever the page's size
Where seen      the class of hw-native-sys/pypto#470
Killed by       agreement, sequence_independence, poison_memory
Survives        pages of 32 keys and more; pages in order
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            """
first = j // 32 * 32
at = table[b, first // size].long() * size + first % size + j % 32
page, place = (at // size).clamp(max=key.shape[0] - 1), at % size
""",
        ),
    ],
    "fp32_stats": [
        (
            "k, v = (pool[pages].flatten(0, 1)[:len_k] for pool in (key, value))",
            """
j = torch.arange(len_k)
first = j // 32 * 32
at = table[b, first // size].long() * size + first % size + j % 32
at = at.clamp(max=key.shape[0] * size - 1)
k, v = (pool.flatten(0, 1)[at] for pool in (key, value))
""",
        ),
    ],
}
