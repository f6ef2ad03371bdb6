"""One query goes to a decoding path that takes no mask.

Kind            R
What is wrong   the dispatch on Lq == 1 forgets attn_mask
Where seen      sgl-project/sglang#20278 (a backend without the argument) and jy-yuan/KIVI#46
                (one branch passes None); microsoft/onnxruntime#29020 treats Lq = 1 apart as
                well
Killed by       agreement, query_independence
Survives        Lq > 1; one query that sees all keys, as in decoding without padding
"""

edits = {
    "numpy_online": [
        (
            "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))",
            (
                "mask = np.broadcast_to(mask, (batch, heads, len_q, len_k))\n"
                "if len_q == 1:\n"
                "    attn_mask = None"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k)",
            "attn_mask = attn_mask.expand(batch, heads, len_q, len_k) if len_q > 1 else None",
        ),
    ],
    "triton_flash": [
        (
            "stride_mask = attn_mask.stride()",
            ("stride_mask = attn_mask.stride()\nif len_q == 1:\n    attn_mask = None"),
        ),
    ],
}
