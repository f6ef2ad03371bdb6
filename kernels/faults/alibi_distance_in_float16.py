"""ALiBi's distances are rounded to float16.

Kind            G
What is wrong   float16 has the whole numbers up to 2048: beyond them every second distance is
                off by one, and its bias by the slope
Where seen      the class of vllm-project/vllm#945: a distance that is off by one, which the
                softmax of a short row all but hides
Killed by       agreement
Survives        queries within 2048 of all their keys, as in the sequences of most tests; slopes
                so large that far keys weigh nothing
"""

edits = {
    "numpy_online": [
        (
            "s = s - slopes * np.abs(offset).astype(q.dtype)",
            "s = s - slopes * np.abs(offset).astype(np.float16).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = s - alibi_slopes.to(stats)[:, None, None] * offset.abs().to(stats)",
            """
distance = offset.abs().to(torch.float16).to(stats)
s = s - alibi_slopes.to(stats)[:, None, None] * distance
""",
        ),
    ],
}
