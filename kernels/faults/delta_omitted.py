"""The backward leaves delta out: dS is P dP.

Kind            P
What is wrong   dS = P (dP - delta) is formed without delta = sum dO O, which the softmax's
                normalization takes off
Where seen      no public issue names it; dV, which has no delta, stays right
Killed by       gradients, constant_v_gradients
Survives        dv; rows whose output is orthogonal to grad_out
"""

edits = {
    "fp32_backward": [
        (
            "ds = p * (dp - delta[:, :, rows])",
            "ds = p * dp",
        )
    ],
    "triton_backward": [
        (
            (
                "_delta[(num_blocks_m * batch * heads,)](\n"
                "    out, grad_out, delta, *grad_out.stride(), heads, len_q, "
                "num_blocks_m, head_dim_v,\n"
                "    BLOCK_M=BLOCK_M, BLOCK_DV=BLOCK_DV,\n"
                ")"
            ),
            "delta.zero_()",
        )
    ],
}
