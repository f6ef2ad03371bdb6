"""Heads beyond the longest axis of a grid are never launched.

Kind            M
What is wrong   batch * heads goes on an axis that ends at 2^16 - 1, 3 here: the launch is cut,
                and the other heads' outputs stay as the allocator left them
Where seen      flashinfer-ai/flashinfer#3125 and SandAI-org/MagiAttention#40: no error, wrong
                results; pytorch/pytorch#142228, Dao-AILab/flash-attention#1786 and
                fla-org/flash-linear-attention#172 where the launch failed loudly
Killed by       agreement, batch_independence
Survives        up to 3 heads times batch (65,535 in public); memory that still holds an earlier
                run's right result
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            (
                "out = acc / np.where(l_i == 0, 1, l_i)\n"
                "rest = to_array(torch.empty(batch * heads - 3, len_q, v.shape[-1])) if batch"
                " * heads > 3 else out[:0]\n"
                "out.reshape(batch * heads, len_q, -1)[3:] = rest.reshape(-1, len_q, v.shape[-1])"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "return out, lse",
            (
                "launched = torch.empty_like(out)\n"
                "launched.view(batch * heads, len_q, -1)[:3] = out.view(batch * heads, len_q,"
                " -1)[:3]\n"
                "return launched, lse"
            ),
        ),
    ],
    "triton_flash": [
        (
            "off_hz = (tl.program_id(0) // num_blocks_m).to(tl.int64)",
            "off_hz = (tl.program_id(0) // num_blocks_m % 3).to(tl.int64)",
        ),
    ],
}
