"""A window is aligned with the first keys instead of the last.

Kind            F
What is wrong   query i sees keys i - left .. i + right, without Lk - Lq
Where seen      ROCm/flash-attention#158 disputes the alignment of a decoding step;
                huggingface/transformers#41228 got the offset wrong
Killed by       agreement
Survives        as many queries as keys, the only case in training; windows that are open on
                both sides
"""

edits = {
    "numpy_online": [
        ("begin = max(0, shift - left) if left >= 0 else 0", "begin = 0"),
        (
            "s = np.where(offset >= -left, s, -np.inf).astype(q.dtype)",
            "s = np.where(offset + shift >= -left, s, -np.inf).astype(q.dtype)",
        ),
        (
            "s = np.where(offset <= right, s, -np.inf).astype(q.dtype)",
            "s = np.where(offset + shift <= right, s, -np.inf).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "begin = max(0, rows.start + shift - left) if left >= 0 else 0",
            "begin = max(0, rows.start - left) if left >= 0 else 0",
        ),
        ("end = min(end, rows.stop + shift + right)", "end = min(end, rows.stop + right)"),
        (
            "s = s.masked_fill(offset < -left, -math.inf)",
            "s = s.masked_fill(offset + shift < -left, -math.inf)",
        ),
        (
            "s = s.masked_fill(offset > right, -math.inf)",
            "s = s.masked_fill(offset + shift > right, -math.inf)",
        ),
    ],
    "triton_flash": [
        (
            "visible &= cols[None, :] >= offs_m + shift - window_left",
            "visible &= cols[None, :] >= offs_m - window_left",
        ),
        (
            "visible &= cols[None, :] <= offs_m + shift + window_right",
            "visible &= cols[None, :] <= offs_m + window_right",
        ),
        (
            "end_n = tl.minimum(end_n, last_m + shift + window_right + 1)",
            "end_n = tl.minimum(end_n, last_m + window_right + 1)",
        ),
        (
            "first_n = tl.maximum(0, start_m * BLOCK_M + shift - window_left)",
            "first_n = tl.maximum(0, start_m * BLOCK_M - window_left)",
        ),
    ],
    "triton_decode": [
        (
            "visible &= cols[None, :] >= offs_m + shift - window_left",
            "visible &= cols[None, :] >= offs_m - window_left",
        ),
        (
            "visible &= cols[None, :] <= offs_m + shift + window_right",
            "visible &= cols[None, :] <= offs_m + window_right",
        ),
        (
            "end_n = tl.minimum(end_n, last_m + shift + window_right + 1)",
            "end_n = tl.minimum(end_n, last_m + window_right + 1)",
        ),
        (
            "begin_n = tl.maximum(0, first_m + shift - window_left) // BLOCK_N * BLOCK_N",
            "begin_n = tl.maximum(0, first_m - window_left) // BLOCK_N * BLOCK_N",
        ),
    ],
}
