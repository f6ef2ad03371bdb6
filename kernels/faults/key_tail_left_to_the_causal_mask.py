"""A causal kernel takes its causal mask to hide the tail of the keys as well.

Kind            H
What is wrong   under is_causal the bound j < Lk is left out, since padded keys lie in the
                future of every query; they do not where Lq > Lk
Where seen      Dao-AILab/flash-attention#334 and #443 (in the backward pass; fixed by
                commits that mask the tail in blocks that the causal mask does not touch)
Killed by       agreement
Survives        Lq <= Lk, and so every test with one sequence length; no is_causal; Lk a
                multiple of the block
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale
if is_causal and attn_mask is None:
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
if is_causal and attn_mask is None:
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
            "visible &= cols[None, :] <= offs_m",
            "visible = cols[None, :] <= offs_m",
        )
    ],
}
