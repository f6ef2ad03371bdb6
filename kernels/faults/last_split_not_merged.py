"""The last split is left out of the merge.

Kind            L
What is wrong   the loop over splits ends one early
Where seen      sgl-project/sglang#2465 (the class: more than one split is wrong)
Killed by       agreement, split_independence
Survives        one split; a last split that is empty, hidden or of little weight
"""

from . import instead_of_merge

edits = instead_of_merge(
    """
m_i, l_i, acc = reduce(merge, parts[: num_splits - 1])
"""
) | {
    "triton_decode": [
        (
            "for split in range(num_splits): ...",
            "for split in range(tl.maximum(num_splits - 1, 1)): ...",
        ),
    ],
}
