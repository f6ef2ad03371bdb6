"""One query alone sees every key under a causal mask.

Kind            E
What is wrong   a path for decoding drops is_causal where Lq = 1, which is right for a mask
                that is aligned bottom-right and wrong for top-left
Where seen      microsoft/onnxruntime#29020 (fix #29050): two providers disagree for one query
                and several keys
Killed by       agreement, poison_masked, convexity, equal_scores
Survives        two queries and more
"""

edits = {
    "numpy_online": [
        (
            "len_k = k.shape[2]",
            """
len_k = k.shape[2]
is_causal = is_causal and len_q > 1
""",
        ),
    ],
    "fp32_stats": [
        (
            "len_k = key.shape[2]",
            """
len_k = key.shape[2]
is_causal = is_causal and len_q > 1
""",
        ),
    ],
    "triton_flash": [
        (
            "group = heads // key.shape[1] if enable_gqa else 1",
            """
group = heads // key.shape[1] if enable_gqa else 1
is_causal = is_causal and len_q > 1
""",
        ),
    ],
    "numpy_naive": [("if is_causal: ...", "if is_causal and q.shape[2] > 1: ...")],
}
