"""Every second page is not looked up.

Kind            K
What is wrong   the loop over pages is unrolled by two, and takes the page after
                the first one's in memory for the second
Where seen      hw-native-sys/pypto#470 (review)
Killed by       agreement, sequence_independence, poison_memory
Survives        pages in order, as a fresh cache allots them; one page a sequence
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            """
page = table[b, j // size // 2 * 2].long() + j // size % 2
page, place = page.clamp(max=key.shape[0] - 1), j % size
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            """
pages = table[b, : -(-len_k // size)].long()
pages[1::2] = pages[: -1 : 2].add(1).clamp(max=key.shape[0] - 1)[: len(pages[1::2])]
""",
        ),
    ],
}
