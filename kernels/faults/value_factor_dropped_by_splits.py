"""The values' factor is not applied where splits are merged.

Kind            Q
What is wrong   one of two entry points multiplies by v_descale, the one with splits, which
                returns partial results with their lse, does not
Where seen      flashinfer-ai/flashinfer#1254, flashinfer-ai/flashinfer#1023: the call that
                returns lse lost the factors
Killed by       agreement
Survives        one split; a factor of 1
"""

edits = {
    "fp32_float8": [
        (
            "acc = acc * alpha + (p @ v) * c",
            "acc = acc * alpha + (p @ v) * (c if num_splits == 1 else 1.0)",
        ),
    ],
}
