"""delta is formed from out read with the strides of grad_out.

Kind            P
What is wrong   the kernel that computes delta = sum dO O is given the strides of grad_out for both
Where seen      Dao-AILab/flash-attention commit 9ee0ff1d
Killed by       grad_out_strides
Survives        a contiguous grad_out; dv, which has no delta
"""

edits = {
    "fp32_backward": [
        (
            "delta = (grad_out.to(stats) * out.to(stats)).sum(dim=-1, keepdim=True)",
            (
                "delta = (grad_out.to(stats) * out.as_strided(out.shape, "
                "grad_out.stride()).to(stats)).sum(dim=-1, keepdim=True)"
            ),
        )
    ],
    "triton_backward": [
        (
            ("out = tl.load(Out + (off_hz * len_q + m) * head_dim_v + d, mask=inside, other=0.0)"),
            (
                "out = tl.load(Out + off_hz // H * stride_oz + off_hz % H * stride_oh "
                "+ m * stride_om + d * stride_od, mask=inside, other=0.0)"
            ),
        )
    ],
}
