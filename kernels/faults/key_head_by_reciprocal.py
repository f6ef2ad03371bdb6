"""The key head of a query head is found by the float32 reciprocal of the group's size.

Kind            I
What is wrong   h times 1 / group, both rounded, is a little below a whole number where the
                reciprocal was rounded down: the first query head of a group reads the key head
                before its own
Where seen      no public issue names it; integer division by a reciprocal is a usual speed-up
Killed by       agreement, gqa_repeated_heads, head_independence
Survives        groups of 1 to 40 and of powers of two, which tests and most models have
"""

edits = {
    "numpy_online": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            """
own = (np.arange(q.shape[1], dtype=np.float32) * np.float32(1 / group)).astype(int)
k, v = k[:, own], v[:, own]
""",
        ),
    ],
    "fp32_stats": [
        (
            (
                "key, value = key.repeat_interleave(group, dim=1),"
                " value.repeat_interleave(group, dim=1)"
            ),
            """
reciprocal = torch.tensor(1 / group, dtype=torch.float32, device=key.device)
own = (torch.arange(heads, dtype=torch.float32, device=key.device) * reciprocal).long()
key, value = key[:, own], value[:, own]
""",
        ),
    ],
}
