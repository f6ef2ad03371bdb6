"""The backward turns the lse that was kept into base 2 where it lies.

Kind            P
What is wrong   the kept lse is multiplied by log2(e) in place, once for each backward: the first
                is right, a second one of the same graph (retain_graph=True) reads it scaled
Where seen      no public report at hand; FlashAttention's backward works on lse * log2(e)
Killed by       second_backward
Survives        one backward for each forward, which is all that training and most tests do
"""

FIRST = "query, key, value, out, lse = ctx.saved_tensors"

AGAIN = """
lse = getattr(ctx, "lse", lse)
ctx.lse = lse * 1.4426950408889634
"""

edits = {name: [(FIRST, FIRST + AGAIN)] for name in ("fp32_backward", "triton_backward")}
