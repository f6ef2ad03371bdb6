"""A bias in nats is added to scores in octaves.

Kind            G
What is wrong   log2(e) is folded into the scale for exp2, but the bias is added as it is, so
                that it counts ln 2 times itself
Where seen      sgl-project/sglang#40903 and lightseekorg/tokenspeed#571 mix the two bases in
                the lse
Killed by       agreement
Survives        masks of 0 and -inf; a bias that is the same for all keys of a row, but for the
                lse
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            (
                "s = s + block * q.dtype.type(math.log(2)) if additive else np.where(block,"
                " s, -np.inf).astype(q.dtype)"
            ),
        ),
    ],
    "fp32_stats": [
        ("s = s + mask.to(stats)", "s = s + mask.to(stats) * math.log(2)"),
    ],
    "triton_flash": [
        ("qk += mask.to(tl.float32)", "qk += mask.to(tl.float32) * 0.6931471805599453"),
    ],
}
