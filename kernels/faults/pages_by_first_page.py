"""A sequence whose first page is that of an earlier one reads the pages of that one.

Kind            K
What is wrong   what was gathered for a prefix is looked up by the first page of a sequence, as
                if those that begin alike went on alike
Where seen      the class of tanishqkumar/ssd#22, where a hit of the prefix cache forgot the block
                table
Killed by       agreement, sequence_independence
Survives        sequences that share no page, a batch of 1, and those that are alike to the end
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            """
first = int((table[:, 0] == table[b, 0]).nonzero()[0, 0])
page, place = table[first, j // size].long(), j % size
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            """
first = int((table[:, 0] == table[b, 0]).nonzero()[0, 0])
pages = table[first, : -(-len_k // size)].long()
""",
        ),
    ],
}
