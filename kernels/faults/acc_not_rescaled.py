"""The accumulator keeps the scale of an earlier, smaller maximum.

Kind            B
What is wrong   l is multiplied by alpha when the running maximum rises, acc is not
Where seen      listed as the commonest mistake by derivations of online softmax; a public
                kernel computed the maximum in place, so that alpha was always 1
Killed by       agreement, constant_v, key_permutation
Survives        any input whose first block holds the maximum of every row, one block alone
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            "acc = acc + p @ v[:, :, start_n:end_n]",
        )
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc + p.to(dtype).to(stats) @ v",
        )
    ],
    "triton_flash": [("acc = acc * alpha[:, None]", "acc = acc * 1.0")],
}
