"""q.k keeps 13 bits behind its leading one.

Kind            Q
What is wrong   float8 tensor cores of Hopper and Ada truncate their sums, which has to be
                promoted to float32 or declared (qk="e8m13")
Where seen      Dao-AILab/flash-attention#2250, deepseek-ai/DeepGEMM#37
Killed by       agreement
Survives        the output, whose P in float8 is coarser than that; scores of few bits
"""

edits = {
    "fp32_float8": [
        (
            "s = (q @ k.transpose(-1, -2)) * (a * b * sm_scale)",
            """
s = ((q @ k.transpose(-1, -2)).view(torch.int32) & ~1023).view(fp32) * (a * b * sm_scale)
""",
        ),
    ],
}
