"""A row that is hidden in every split is merged to NaN.

Kind            L
What is wrong   the weights of a merge are exp(lse - max lse) without a guard, and both are
                -inf for a row that saw no key in any split
Where seen      Dao-AILab/flash-attention commit 26d7d92f, tile-ai/tilelang#328,
                ROCm/aiter#4420, pegainfer-project/pegainfer#21
Killed by       agreement, key_doubling
Survives        rows that see a key; one split. triton_flash splits 64 keys at a time, and never
                with is_causal
"""

from . import by_splits, instead_of_merge

edits = (
    by_splits(
        """
weights = torch.exp(lses - lses.amax(0))[..., None]
out = (weights * outs).sum(0) / weights.sum(0)
return out.to(query.dtype), torch.logsumexp(lses, 0)
""",
    )
    | instead_of_merge(
        """
m_i = xp.amax(ms, 0)
weights = xp.exp(ms - m_i)
l_i, acc = (weights * ls).sum(0), (weights * accs).sum(0)
"""
    )
    | {
        "triton_decode": [
            (
                "beta = tl.exp(m_split - m_ref)",
                """
alpha = tl.exp(m_i - m_new)
beta = tl.exp(m_split - m_new)
""",
            ),
        ],
    }
)
