"""The block table's pages are made places of keys in the caller's memory.

Kind            K
What is wrong   table *= page size, once, so that no thread has to multiply: this call is
                right, and the next one reads pages that are others or none
Where seen      no public report at hand; an engine keeps one table for all layers
Killed by       inputs_unmodified, repeat
Survives        pages of one key; page 0; every test that makes its table for each call
"""

edits = {
    "numpy_online": [
        (
            "page, place = table[b, j // size].long(), j % size",
            """
row = table[b].mul_(size)
page, place = row[j // size].long() // size, j % size
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            "pages = table[b].mul_(size)[: -(-len_k // size)].long() // size",
        ),
    ],
    "triton_decode": [
        (
            "lengths = (cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens)",
            """
if block_table is not None:
    block_table.mul_(page_size)
lengths = (cu_seqlens_q, cu_seqlens_k, block_table, cache_seqlens)
""",
        ),
        (
            "page = tl.load(pages, mask=cols < len_k, other=0).to(tl.int64)[:, None]",
            "page = tl.load(pages, mask=cols < len_k, other=0).to(tl.int64)[:, None] // page_size",
        ),
    ],
}
