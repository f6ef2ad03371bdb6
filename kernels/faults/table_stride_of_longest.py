"""Rows of the block table are taken for as long as the longest sequence needs.

Kind            K
What is wrong   the stride between rows is computed from the longest length, and
                the table was allotted wider
Where seen      gittensor-ai-lab/sparkinfer#146: only the beginning of a row is
                valid
Killed by       agreement, sequence_independence, poison_memory
Survives        a batch of 1; a table as wide as its longest sequence, which tests
                allot
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            """
stride = -(-int(lengths.max()) // size)
page, place = table.flatten()[b * stride + j // size].long(), j % size
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            """
stride = -(-int(lengths.max()) // size)
pages = table.flatten()[b * stride : b * stride + -(-len_k // size)].long()
""",
        ),
    ],
}
