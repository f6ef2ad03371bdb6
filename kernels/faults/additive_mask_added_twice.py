"""The additive mask is added twice.

Kind            A
What is wrong   added as the accumulator that q.k starts from, and again after the scale
Where seen      no public issue names it; a bias that is both folded into the scores and passed
                on is what a refactoring leaves
Killed by       agreement
Survives        bool masks, and additive masks of 0 and -inf, which twice are what they are
                once
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s + block + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [("s = s + mask.to(stats)", "s = s + 2 * mask.to(stats)")],
    "triton_flash": [("qk += mask.to(tl.float32)", "qk += 2.0 * mask.to(tl.float32)")],
    "numpy_naive": [
        (
            "s = s + to_array(attn_mask).astype(q.dtype)",
            "s = s + 2 * to_array(attn_mask).astype(q.dtype)",
        ),
    ],
}
