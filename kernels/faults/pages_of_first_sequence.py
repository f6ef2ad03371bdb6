"""All sequences read the pages of the first.

Kind            K
What is wrong   the row of the block table is left out of the address
Where seen      the class of gittensor-ai-lab/sparkinfer#146: rows of another
                request are read
Killed by       agreement, sequence_independence, poison_memory
Survives        a batch of 1; a shared prefix
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            "page, place = table[0, j // size].long(), j % size",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            "pages = table[0, : -(-len_k // size)].long()",
        ),
    ],
    "triton_decode": [
        (
            "pages = Table + off_z * stride_tz + cols // page_size",
            "pages = Table + cols // page_size",
        ),
    ],
}
