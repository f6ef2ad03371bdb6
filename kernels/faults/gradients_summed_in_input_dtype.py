"""dK and dV are added up in the input dtype.

Kind            P
What is wrong   each block of queries, and each query head of a key head, adds its part to a buffer
                in half precision
Where seen      torch 2.13's own flash backward on a CPU (over query heads, and over blocks of 32
                queries)
Killed by       gradients, value_gradient_sum
Survives        float32; one block of queries and one query head
"""

edits = {
    "fp32_backward": [
        (
            ("dk = torch.zeros(batch, heads, len_k, head_dim, dtype=stats, device=query.device)"),
            ("dk = torch.zeros(batch, heads, len_k, head_dim, dtype=dtype, device=query.device)"),
        ),
        (
            ("dv = torch.zeros(*dk.shape[:3], value.shape[3], dtype=stats, device=query.device)"),
            ("dv = torch.zeros(*dk.shape[:3], value.shape[3], dtype=dtype, device=query.device)"),
        ),
    ],
    "triton_backward": [
        (
            'dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, input_precision="ieee")',
            (
                "dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, "
                'input_precision="ieee").to(do.dtype).to(tl.float32)'
            ),
        ),
        (
            'dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")',
            (
                "dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, "
                'input_precision="ieee").to(q.dtype).to(tl.float32)'
            ),
        ),
    ],
}
