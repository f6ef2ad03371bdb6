"""The outputs of splits of the keys are averaged.

Kind            L
What is wrong   the partial outputs are merged with equal weights, not with exp(lse - max lse).
                lse is merged rightly
Where seen      the class of sgl-project/sglang#2465 (wrong as soon as there are two splits)
Killed by       agreement, one_hot, key_doubling
Survives        one split; scores whose sum of exponentials is the same in each split, which
                long rows of randn nearly have. triton_flash splits 64 keys at a time, and never
                with is_causal
"""

from . import by_splits, instead_of_merge

edits = (
    by_splits(
        """
return outs.mean(0).to(query.dtype), torch.logsumexp(lses, 0)
""",
    )
    | instead_of_merge(
        """
outs = accs / xp.where(ls == 0, 1.0, ls)
acc = outs.sum(0) / num_splits * l_i
"""
    )
    | {
        "triton_decode": [
            (
                "for split in range(num_splits): ...",
                """
mean = acc
for split in range(num_splits): ...
""",
            ),
            (
                "acc = acc * alpha + part * beta",
                """
mean += part / tl.where(l_split == 0.0, 1.0, l_split) / num_splits
acc = acc * alpha + part * beta
""",
            ),
            (
                "out = (acc / l_i).to(Out.dtype.element_ty)",
                "out = tl.where(num_splits > 1, mean, acc / l_i).to(Out.dtype.element_ty)",
            ),
        ],
    }
)
