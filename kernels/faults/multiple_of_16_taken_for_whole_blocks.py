"""A number of keys that 16 divides is taken to have no tail.

Kind            H
What is wrong   the flag that a length is a multiple of 16, which aligned loads need, also
                leaves out the mask of the tail: with larger blocks the zeros of the padding
                take part
Where seen      pytorch/pytorch#133717 (flex decoding took lengths for divisible that were
                not)
Killed by       agreement, equal_scores, key_doubling
Survives        lengths that 16 does not divide or the block does, as those of most tests;
                blocks of 16 and less; an attn_mask; Lq <= Lk under is_causal
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale
if attn_mask is None and len_k % 16 == 0:
    s = np.pad(s, ((0, 0), (0, 0), (0, 0), (0, start_n + BLOCK_N - end_n)))
""",
        ),
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = start_n + np.arange(s.shape[-1]) <= np.arange(len_q)[:, None]",
        ),
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            "acc = acc * alpha + p[..., : end_n - start_n] @ v[:, :, start_n:end_n]",
        ),
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            """
s = (q @ k.transpose(-1, -2)) * sm_scale
if attn_mask is None and len_k % 16 == 0:
    s = torch.nn.functional.pad(s, (0, start_n + BLOCK_N - cols.stop))
""",
        ),
        (
            "j = torch.arange(cols.start, cols.stop, device=device)",
            "j = start_n + torch.arange(s.shape[-1], device=device)",
        ),
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc * alpha + p[..., : cols.stop - start_n].to(dtype).to(stats) @ v",
        ),
    ],
    "triton_flash": [
        (
            "visible = (cols < len_k)[None, :]",
            "visible = ((cols < len_k) | ((len_k % 16 == 0) & (Mask is None)))[None, :]",
        )
    ],
}
