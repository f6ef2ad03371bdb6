"""The zeros that fill up the last block of keys take part.

Kind            H
What is wrong   the tail of the last block is loaded as zeros, and nothing hides their
                scores of 0: each counts exp(0 - m) in l. A mask's loads still bound the
                columns
Where seen      jax-ml/jax#27224 and #23819 (Pallas attention without a mask of the key
                tail)
Killed by       agreement
Survives        lengths that are multiples of the block, an attn_mask, scores well above 0;
                tests at 128 and 1024 keys never have a tail
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale
if attn_mask is None:
    s = np.pad(s, ((0, 0), (0, 0), (0, 0), (0, start_n + BLOCK_N - end_n)))
""",
        ),
        (
            "visible = np.arange(start_n, end_n) <= np.arange(len_q)[:, None]",
            "visible = np.arange(start_n, start_n + BLOCK_N) <= np.arange(len_q)[:, None]",
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
if attn_mask is None:
    s = torch.nn.functional.pad(s, (0, start_n + BLOCK_N - cols.stop))
""",
        ),
        (
            "j = torch.arange(cols.start, cols.stop, device=device)",
            "j = torch.arange(start_n, start_n + BLOCK_N, device=device)",
        ),
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc * alpha + p[..., : cols.stop - start_n].to(dtype).to(stats) @ v",
        ),
    ],
    "triton_flash": [
        (
            "visible = (cols < len_k)[None, :]",
            "visible = (cols < len_k)[None, :] | (Mask is None)",
        )
    ],
}
