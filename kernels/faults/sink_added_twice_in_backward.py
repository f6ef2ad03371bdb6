"""The backward adds the sink to an lse that holds it.

Kind            P
What is wrong   lse is taken for one that lacks the sink: P = exp(S - log(exp(lse) + exp(sink))) is
                too small
Where seen      no public issue names it for a backward; NVIDIA/cudnn-frontend#768 asks whether a
                merge of splits counts the sink again, and Dao-AILab/flash-attention#2102 has a
                forward with sinks and a backward without
Killed by       gradients, value_gradient_sum
Survives        sinks far below the scores; no forward check sees it
"""

edits = {
    "fp32_backward": [
        (
            "query, key, value, out, lse = ctx.saved_tensors",
            """
query, key, value, out, lse = ctx.saved_tensors
if ctx.options["sinks"] is not None:
    lse = torch.logaddexp(lse, ctx.options["sinks"].to(lse.dtype)[:, None])
""",
        ),
    ],
    "triton_backward": [
        (
            "query, key, value, out, lse = ctx.saved_tensors",
            """
query, key, value, out, lse = ctx.saved_tensors
if ctx.options["sinks"] is not None:
    lse = torch.logaddexp(lse, ctx.options["sinks"][:, None])
""",
        ),
    ],
}
