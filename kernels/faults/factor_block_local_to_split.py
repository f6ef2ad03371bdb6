"""The block of a factor is counted from the beginning of the split.

Kind            Q
What is wrong   the loop over the keys of a split starts at 0, keys and values are offset to
                the split, the factors are not
Where seen      as causal_key_local_to_block: an index that is local to a part, where one of
                the whole is meant
Killed by       agreement
Survives        one split; factors that are the same for all blocks
"""

edits = {
    "fp32_float8": [
        (
            "n = start_n // DESCALE_N",
            "n = (start_n - split * each) // DESCALE_N",
        ),
    ],
}
