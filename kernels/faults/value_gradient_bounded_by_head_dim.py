"""Features of dV past the head size of q and k are left out.

Kind            P
What is wrong   a bound of D is used where Dv belongs, so that grad_out's features past D take no
                part
Where seen      pytorch/pytorch#133495 (index_k where index_v belongs, found when padding was added)
Killed by       gradients, value_gradient_sum
Survives        Dv <= D
"""

edits = {
    "fp32_backward": [
        (
            "q, do = query[:, :, rows].to(stats), grad_out[:, :, rows].to(stats)",
            (
                "q, do = query[:, :, rows].to(stats), grad_out[:, :, rows].to(stats)\n"
                "bound = torch.arange(do.shape[-1], device=do.device) < head_dim\n"
                "do = do.masked_fill(~bound, 0.0)"
            ),
        )
    ],
    "triton_backward": [
        (
            "q_mask, do_mask = rows & (offs_d < head_dim), rows & (offs_dv < head_dim_v)",
            (
                "q_mask, do_mask = rows & (offs_d < head_dim), rows & (offs_dv < "
                "tl.minimum(head_dim, head_dim_v))"
            ),
        )
    ],
}
