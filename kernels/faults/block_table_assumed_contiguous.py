"""The block table is read as if it were contiguous.

Kind            K
What is wrong   the stride between its rows is taken from its shape; it is the first columns
                of a wider table, so that all rows but the first are another's
Where seen      the class of ROCm/aiter#3498, where the stride between pages is; vLLM passes
                such tables
Killed by       agreement, strides, poison_memory
Survives        a batch of 1; a table that was allotted for the call
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            """
table = table.as_strided(table.shape, (table.shape[1], 1))
page, place = table[b, j // size].long(), j % size
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            """
table = table.as_strided(table.shape, (table.shape[1], 1))
pages = table[b, : -(-len_k // size)].long()
""",
        ),
    ],
    "triton_decode": [
        (
            "lengths = (cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens)",
            """
if block_table is not None:
    block_table = block_table.as_strided(block_table.shape, (block_table.shape[1], 1))
lengths = (cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens)
""",
        ),
    ],
}
