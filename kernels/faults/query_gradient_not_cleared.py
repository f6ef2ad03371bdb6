"""dQ is added to what its memory held before.

Kind            P
What is wrong   the buffer to which blocks of keys add their parts of dQ is allocated and not set to
                0
Where seen      fla-org/flash-linear-attention#892 and Dao-AILab/flash-attention#41 (gradient
                buffers from empty_like)
Killed by       poison_gradients, gradients
Survives        memory that happens to hold zeros, as new pages do
"""

edits = {
    "fp32_backward": [
        (
            "dq = torch.zeros(query.shape, dtype=stats, device=query.device)",
            "dq = torch.empty(query.shape, dtype=stats, device=query.device)",
        )
    ],
    "triton_backward": [
        (
            "dq = tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32)",
            (
                "dq = tl.load(DQ + (off_hz * len_q + m) * head_dim + offs_d, mask=rows "
                "& (offs_d < head_dim), other=0.0).to(tl.float32)"
            ),
        )
    ],
}
