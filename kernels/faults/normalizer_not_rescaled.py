"""The normalizer keeps the scale of an earlier, smaller maximum.

Kind            B
What is wrong   acc is multiplied by alpha when the running maximum rises, l is not
Where seen      derivations of online softmax: acc and l have to be rescaled alike
Killed by       agreement, key_permutation, one_hot, key_doubling
Survives        any input whose first block holds the maximum of every row, one block alone
"""

edits = {
    "numpy_online": [
        (
            "l_i = l_i * alpha + p.sum(axis=-1, keepdims=True)",
            "l_i = l_i + p.sum(axis=-1, keepdims=True)",
        ),
    ],
    "fp32_stats": [
        (
            "l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)",
            "l_i = l_i + p.sum(dim=-1, keepdim=True)",
        ),
    ],
    "triton_flash": [("l_i = l_i * alpha + tl.sum(p, 1)", "l_i = l_i + tl.sum(p, 1)")],
}
