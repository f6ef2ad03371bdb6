"""Values are read as if their pages lay in order.

Kind            K
What is wrong   the block table is applied to K and forgotten for V
Where seen      tanishqkumar/ssd#22: a paged cache passed on without its table
Killed by       agreement, sequence_independence, poison_memory
Survives        pages in order; V the same for all keys
"""

edits = {
    "numpy_online": [
        (
            "k, v = (pool[page, place].transpose(0, 1)[None] for pool in (key, value))",
            """
k = key[page, place].transpose(0, 1)[None]
page = (b * table.shape[1] + j // size).clamp(max=value.shape[0] - 1)
v = value[page, place].transpose(0, 1)[None]
""",
        ),
    ],
    "fp32_stats": [
        (
            "k, v = (pool[pages].flatten(0, 1)[:len_k] for pool in (key, value))",
            """
k = key[pages].flatten(0, 1)[:len_k]
pages = (b * table.shape[1] + torch.arange(len(pages))).clamp(max=value.shape[0] - 1)
v = value[pages].flatten(0, 1)[:len_k]
""",
        ),
    ],
}
