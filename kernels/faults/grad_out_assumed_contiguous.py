"""grad_out is read as if it were contiguous.

Kind            P
What is wrong   the backward computes addresses in grad_out from the strides of out
Where seen      Dao-AILab/flash-attention commit 9ee0ff1d confused the strides of O and dO the other
                way round; out.sum() gives a grad_out with strides of 0
Killed by       grad_out_strides
Survives        a contiguous grad_out, which is what autograd mostly makes
"""

edits = {
    "fp32_backward": [
        (
            "query, key, value, out, lse = ctx.saved_tensors",
            (
                "query, key, value, out, lse = ctx.saved_tensors\n"
                "if 0 not in grad_out.stride():\n"
                "    grad_out = grad_out.as_strided(out.shape, out.stride())"
            ),
        )
    ],
    "triton_backward": [
        (
            (
                "steps = *query.stride(), *key.stride(), *value.stride(), *strides, "
                "*grad_out.stride()"
            ),
            ("steps = *query.stride(), *key.stride(), *value.stride(), *strides, *out.stride()"),
        )
    ],
}
