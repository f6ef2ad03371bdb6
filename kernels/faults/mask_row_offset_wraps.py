"""The offset of a mask row wraps around.

Kind            M
What is wrong   row times row length is computed in a narrow integer, 10 bits here for 32: later
                queries read the mask at an earlier place
Where seen      pytorch/pytorch#187225, #162588 and #186075: wrong rows from row 2^32 / Lk on;
                ggml-org/llama.cpp#24912: a mask stride that became negative
Killed by       agreement, key_doubling
Survives        Lq * Lk up to the width (2^32 in the public bug); masks that are the same for
                all queries
"""

edits = {
    "numpy_online": [
        (
            "block = mask[..., start_n:end_n]",
            (
                "at = np.arange(len_q)[:, None] * len_k % 1024 + np.arange(start_n, end_n)\n"
                "block = mask.reshape(batch, heads, -1)[..., at]"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "mask = attn_mask[:, :, rows, cols]",
            (
                "at = torch.arange(rows.start, rows.stop, device=device)[:, None] * len_k % 1024\n"
                "at = at + torch.arange(cols.start, cols.stop, device=device)\n"
                "mask = attn_mask.reshape(batch, heads, -1)[..., at]"
            ),
        ),
    ],
    "triton_flash": [
        ("mask_ptrs += m * stride_mm", "mask_ptrs += m * stride_mm % 1024"),
    ],
}
