"""A window hides what lies more than `left` to the right of the query.

Kind            F
What is wrong   the diagonal of the band is +left where -left is meant; blocks that lie wholly
                before the window are still skipped
Where seen      huggingface/transformers#41228 (tril with +sliding_window)
Killed by       agreement
Survives        windows wider than a block, where all that is hidden is skipped; is_causal
                besides hides that it hides too much
"""

edits = {
    "numpy_online": [
        (
            "s = np.where(offset >= -left, s, -np.inf).astype(q.dtype)",
            "s = np.where(offset <= left, s, -np.inf).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = s.masked_fill(offset < -left, -math.inf)",
            "s = s.masked_fill(offset > left, -math.inf)",
        ),
    ],
    "triton_flash": [
        (
            "visible &= cols[None, :] >= offs_m + shift - window_left",
            "visible &= cols[None, :] <= offs_m + shift + window_left",
        ),
    ],
    "triton_decode": [
        (
            "visible &= cols[None, :] >= offs_m + shift - window_left",
            "visible &= cols[None, :] <= offs_m + shift + window_left",
        ),
    ],
}
