"""An additive mask is added before the scale, which multiplies it too.

Kind            G
What is wrong   (q.k + mask) scale: a bias counts as bias times scale, and -inf becomes NaN for
                a scale of 0 and +inf for a negative one
Where seen      emmtrix/emx-onnx-cgen#731 had another step of the same chain, the softcap, in
                the wrong place beside the mask
Killed by       agreement
Survives        masks of 0 and -inf with a positive scale, which is what a boolean mask becomes;
                a scale of 1
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            (
                "s = s + block * sm_scale if additive else np.where(block, s,"
                " -np.inf).astype(q.dtype)"
            ),
        ),
    ],
    "fp32_stats": [
        ("s = s + mask.to(stats)", "s = s + mask.to(stats) * sm_scale"),
    ],
    "triton_flash": [
        ("qk += mask.to(tl.float32)", "qk += mask.to(tl.float32) * sm_scale"),
    ],
    "numpy_naive": [
        (
            "s = s + to_array(attn_mask).astype(q.dtype)",
            "s = s + to_array(attn_mask).astype(q.dtype) * sm_scale",
        ),
    ],
}
