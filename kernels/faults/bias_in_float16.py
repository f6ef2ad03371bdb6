"""An additive mask is stored in float16.

Kind            G
What is wrong   a float32 bias loses thirteen bits, and one beyond 65,504 becomes infinite
Where seen      ggml's attention takes its mask as float16; keras-team/keras#22783 converts the
                bias to the query's dtype; google/flax#982 is the overflow of a large negative
                bias, NaN in float16 alone
Killed by       agreement
Survives        masks of 0 and -inf; a bias of few bits; a float16 mask, which is stored as it
                came
"""

edits = {
    "numpy_online": [
        (
            ("mask = to_array(attn_mask).astype(q.dtype) if additive else attn_mask.cpu().numpy()"),
            (
                "mask = to_array(attn_mask.half()).astype(q.dtype) if additive else"
                " attn_mask.cpu().numpy()"
            ),
        ),
    ],
    "fp32_stats": [
        ("s = s + mask.to(stats)", "s = s + mask.to(torch.float16).to(stats)"),
    ],
    "triton_flash": [
        ("qk += mask.to(tl.float32)", "qk += mask.to(tl.float16).to(tl.float32)"),
    ],
    "numpy_naive": [
        (
            "s = s + to_array(attn_mask).astype(q.dtype)",
            "s = s + to_array(attn_mask.half()).astype(q.dtype)",
        ),
    ],
}
