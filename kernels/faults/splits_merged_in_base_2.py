"""The outputs of splits are merged as if their natural lse were in base 2.

Kind            L
What is wrong   the weights of a merge are 2^(lse - max lse) where each split's lse is a
                natural logarithm
Where seen      sgl-project/sglang#40903 and #35045, flashinfer-ai/flashinfer#4547 and #4485
                (the reverse: base 2 merged by exp)
Killed by       agreement, key_doubling
Survives        one split; splits with the same lse, which long rows of randn nearly have.
                triton_flash splits 64 keys at a time, and never with is_causal
"""

from . import by_splits, instead_of_merge

edits = (
    by_splits(
        """
lse = torch.logsumexp(lses, 0)
weights = torch.exp2(lses - lse.masked_fill(lse == -math.inf, 0.0))[..., None]
total = weights.sum(0)
out = (weights * outs).sum(0) / total.masked_fill(total == 0, 1.0)
return out.to(query.dtype), lse
""",
    )
    | instead_of_merge(
        """
lses = ms + xp.log(ls)
lse_i = xp.amax(lses, 0)
weights = xp.exp2(lses - xp.where(lse_i == -math.inf, 0.0, lse_i))
total = weights.sum(0)
outs = accs / xp.where(ls == 0, 1.0, ls)
acc = (weights * outs).sum(0) / xp.where(total == 0, 1.0, total) * l_i
"""
    )
    | {
        "triton_decode": [
            (
                "beta = tl.exp(m_split - m_ref)",
                """
alpha = tl.exp2(m_i - m_ref)
beta = tl.exp2(m_split - m_ref)
""",
            ),
        ],
    }
)
