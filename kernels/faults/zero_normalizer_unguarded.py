"""The output is divided by a normalizer of 0: 0 / 0 in rows that see no key.

Kind            A
What is wrong   acc / l without a test for l = 0; lse is right, since log(0) is -inf as it
                should be
Where seen      ROCm/aiter#4420 (no guard for a sum of 0 in the final division, on the simple
                path alone); pytorch/pytorch#160064 (only one of two paths has it)
Killed by       agreement, query_independence, key_permutation, batch_independence
Survives        every input whose rows all see a key: neither unmasked nor causal calls have
                others
"""

edits = {
    "numpy_online": [("out = acc / np.where(l_i == 0, 1, l_i)", "out = acc / l_i")],
    "fp32_stats": [
        (
            "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)",
            "out[:, :, rows] = (acc / l_i).to(dtype)",
        ),
    ],
    "triton_flash": [("l_i = tl.where(l_i == 0.0, 1.0, l_i)", "l_i = l_i + 0.0")],
    "numpy_naive": [("p = p / np.where(l == 0, 1, l)", "p = p / l")],
}
