"""Key lengths that fill their blocks take a path without the mask.

Kind            R
What is wrong   a block is taken for full, and its mask not read, when Lk is a multiple of
                BLOCK_N
Where seen      torch-spyre/torch-spyre#4331: wrong only for lengths that are multiples of 64,
                since padding repaired the others; pytorch/pytorch#133717 confuses the same two
                paths
Killed by       agreement
Survives        lengths off the block size; no mask. A test at powers of two meets it, a test at
                odd lengths does not
"""

edits = {
    "numpy_online": [
        (
            "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))",
            (
                "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))\n"
                "if len_k % BLOCK_N == 0:\n"
                "    attn_mask = None"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            (
                "attn_mask = attn_mask.expand(batch, heads, len_q, len_k) if len_k % BLOCK_N"
                " else None"
            ),
        ),
    ],
    "triton_flash": [
        (
            "stride_mask = attn_mask.stride()",
            ("stride_mask = attn_mask.stride()\nif len_k % BLOCK_N == 0:\n    attn_mask = None"),
        ),
    ],
}
