"""Splits are merged by exp(m), without their normalizers.

Kind            L
What is wrong   each split is normalized, and weighs exp(m - max m) where l exp(m - max m) is
                meant. lse is merged rightly
Where seen      the class of sgl-project/sglang#2465 (wrong as soon as there are two splits)
Killed by       agreement, split_independence
Survives        one split; splits with the same normalizer, as splits of equal length and equal
                scores have
"""

from . import instead_of_merge

edits = instead_of_merge(
    """
weights = xp.exp(ms - xp.where(m_i == -math.inf, 0.0, m_i))
outs = accs / xp.where(ls == 0, 1.0, ls)
total = weights.sum(0)
acc = (weights * outs).sum(0) / xp.where(total == 0, 1.0, total) * l_i
"""
) | {
    "triton_decode": [
        (
            "for split in range(num_splits): ...",
            """
total = l_i
for split in range(num_splits): ...
""",
        ),
        (
            "acc = acc * alpha + part * beta",
            """
total = total * alpha + beta
acc = acc * alpha + part / tl.where(l_split == 0.0, 1.0, l_split) * beta
""",
        ),
        (
            "out = (acc / l_i).to(Out.dtype.element_ty)",
            "out = (acc / tl.where(total == 0.0, 1.0, total)).to(Out.dtype.element_ty)",
        ),
    ],
}
