"""Each split stores its lse in the same place: the last one's is returned.

Kind            L
What is wrong   outputs are merged rightly, but lse is that of the last split alone
Where seen      sgl-project/sgl-kernel-xpu#487 (an inactive split overwrites the lse)
Killed by       agreement
Survives        one split; every test that looks at the output alone. triton_flash splits 64
                keys at a time, and never with is_causal
"""

from . import by_splits, instead_of_merge

edits = (
    by_splits(
        """
lse = torch.logsumexp(lses, 0)
weights = torch.exp(lses - lse.masked_fill(lse == -math.inf, 0.0))[..., None]
return (weights * outs).sum(0).to(query.dtype), lses[-1]
""",
    )
    | instead_of_merge(
        """
out_i = acc / xp.where(l_i == 0, 1.0, l_i)
m_i, l_i = ms[num_splits - 1], ls[num_splits - 1]
acc = out_i * xp.where(l_i == 0, 1.0, l_i)
"""
    )
    | {
        "triton_decode": [
            (
                "for split in range(num_splits): ...",
                """
lse = m_i + tl.log(l_i)
for split in range(num_splits): ...
""",
            ),
            (
                "acc = acc * alpha + part * beta",
                """
lse = m_split + tl.log(l_split)
acc = acc * alpha + part * beta
""",
            ),
            (
                "tl.store(Lse + offs_m, m_i + tl.log(l_i), mask=rows)",
                "tl.store(Lse + offs_m, lse, mask=rows)",
            ),
        ],
    }
)
