"""A bias of -1e4 or less is taken for hiding.

Kind            A
What is wrong   a kernel that wants to skip what is hidden tests mask <= -1e4; a finite bias is
                a number, and with the same bias on every key nothing changes
Where seen      models mask with -1e4 (google-research/bert) and with the smallest finite
                number; microsoft/onnxruntime#28958 shows what such rows should give
Killed by       agreement, constant_v, convexity
Survives        bool masks, -inf, biases above -1e4 (-1e4 itself is -9984 in bfloat16), and
                keys that lie far below others of their row, whose weight is 0 anyway
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            (
                "s = s + np.where(block <= -1e4, -np.inf, block) if additive else "
                "np.where(block, s, -np.inf).astype(q.dtype)"
            ),
        ),
    ],
    "fp32_stats": [
        ("s = s + mask.to(stats)", "s = s + mask.to(stats).masked_fill(mask <= -1e4, -math.inf)"),
    ],
    "triton_flash": [
        (
            "qk += mask.to(tl.float32)",
            'qk += tl.where(mask <= -10000.0, float("-inf"), mask.to(tl.float32))',
        ),
    ],
    "numpy_naive": [
        (
            "s = s + to_array(attn_mask).astype(q.dtype)",
            """
bias = to_array(attn_mask).astype(q.dtype)
s = s + np.where(bias <= -1e4, -np.inf, bias).astype(q.dtype)
""",
        ),
    ],
}
