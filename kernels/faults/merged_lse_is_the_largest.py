"""The lse of a merge is the largest of the splits'.

Kind            L
What is wrong   out is merged rightly; lse is max lse_i, without the logarithm of the sum
Where seen      no public issue names it; sgl-project/sgl-kernel-xpu#487 returns another split's
                lse
Killed by       agreement, split_independence
Survives        one split; rows in which one split has all the weight; tests that look at the
                output alone
"""

from . import instead_of_merge

edits = instead_of_merge(
    """
out_i = acc / xp.where(l_i == 0, 1.0, l_i)
m_i = xp.amax(ms + xp.log(ls), 0)
l_i = xp.ones_like(l_i)
acc = out_i
"""
) | {
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
lse = tl.maximum(lse, m_split + tl.log(l_split))
acc = acc * alpha + part * beta
""",
        ),
        (
            "tl.store(Lse + offs_m, m_i + tl.log(l_i), mask=rows)",
            "tl.store(Lse + offs_m, lse, mask=rows)",
        ),
    ],
}
