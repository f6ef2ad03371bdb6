"""A split without a key returns NaN, which its weight of 0 does not remove.

Kind            L
What is wrong   each split divides acc by l, both 0 where it saw no key; 0 times NaN is NaN
Where seen      flashinfer-ai/flashinfer#3047 (NaN in a part whose lse is -inf), ROCm/aiter#4420
                (no guard for a sum of 0)
Killed by       agreement, split_independence
Survives        one split; calls in which each row sees a key in every split
"""

from . import instead_of_merge

edits = instead_of_merge(
    """
lses = ms + xp.log(ls)
lse_i = xp.amax(lses, 0)
weights = xp.exp(lses - xp.where(lse_i == -math.inf, 0.0, lse_i))
m_i, l_i = lse_i, weights.sum(0)
acc = (weights * (accs / ls)).sum(0)
"""
) | {
    "triton_decode": [
        (
            "acc = acc * alpha + part * beta",
            "acc = acc * alpha + part / l_split * l_split * beta",
        ),
    ],
}
