"""The values' factor is multiplied into P before P is rounded.

Kind            Q
What is wrong   P, enlarged to 256, saturates where the factor is above 1.75, and underflows
                where it is small
Where seen      flashinfer-ai/flashinfer#5272 applies the factor to P, in a wider format,
                where it is harmless
Killed by       agreement
Survives        factors near 1; e5m2, which holds 224 times 256
"""

edits = {
    "fp32_float8": [
        (
            "p = saturated(p, p_format).to(fp32)",
            "p = saturated(p * c, p_format).to(fp32)",
        ),
        (
            "acc = acc * alpha + (p @ v) * c",
            "acc = acc * alpha + p @ v",
        ),
    ],
}
