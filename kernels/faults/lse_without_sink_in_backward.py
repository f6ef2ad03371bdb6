"""The backward recomputes the weights from an lse that lacks the sink.

Kind            P
What is wrong   P = exp(S - lse) of an lse without the sink sums to 1 over the keys, where the sink
                has a share
Where seen      Dao-AILab/flash-attention#2102 (the forward took sinks before the backward did)
Killed by       gradients, value_gradient_sum
Survives        sinks far below the scores; no forward check sees it
"""

edits = {
    "fp32_backward": [
        (
            "query, key, value, out, lse = ctx.saved_tensors",
            """
query, key, value, out, lse = ctx.saved_tensors
lse = forward(query, key, value, **{**ctx.options, "sinks": None})[1]
""",
        ),
    ],
    "triton_backward": [
        (
            "query, key, value, out, lse = ctx.saved_tensors",
            """
query, key, value, out, lse = ctx.saved_tensors
lse = forward(query, key, value, **{**ctx.options, "sinks": None})[1]
""",
        ),
    ],
}
