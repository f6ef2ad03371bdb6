"""Each split adds the sink.

Kind            G
What is wrong   the normalizer has as many sinks as there are splits
Where seen      ROCm/composable_kernel#3490 (a split is not asked whether it is the first);
                NVIDIA/cudnn-frontend#768 asks the same of a merge
Killed by       agreement, split_independence
Survives        one split; sinks far below the scores
"""

edits = {
    "numpy_online": [
        (
            "m_i, l_i, acc = reduce(merge, parts)",
            """
if sinks is not None:
    parts += parts[-1:] * (num_splits - 1)
m_i, l_i, acc = reduce(merge, parts)
""",
        ),
    ],
    "fp32_stats": [
        ("if sinks is not None and split == 0: ...", "if sinks is not None: ..."),
    ],
    "triton_decode": [
        (
            "l_i += 1.0",
            "l_i += 1.0 * num_splits",
        ),
    ],
}
