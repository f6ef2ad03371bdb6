"""1e-5 is added to the normalizer, against a division by 0.

Kind            A
What is wrong   l + 1e-5 where a select belongs: harmless in empty rows, a relative error of
                1e-5 / l in all others
Where seen      tracel-ai/burn#4694 clamps the sum at 1e-6, which changes nothing, since l is
                at least 1 in a row that sees a key; adding it does
Killed by       agreement, constant_v, convexity, equal_scores
Survives        float16 and bfloat16, whose roundoff covers it; in float32 more than three
                keys, for which l is larger and the bound wider. 1e-6 would stay within the
                contract's float32 bound even for one key, at 0.3 of it
"""

edits = {
    "numpy_online": [("out = acc / np.where(l_i == 0, 1, l_i)", "out = acc / (l_i + 1e-5)")],
    "fp32_stats": [
        (
            "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)",
            "out[:, :, rows] = (acc / (l_i + 1e-5)).to(dtype)",
        ),
    ],
    "triton_flash": [("l_i = tl.where(l_i == 0.0, 1.0, l_i)", "l_i = l_i + 1e-5")],
    "numpy_naive": [("p = p / np.where(l == 0, 1, l)", "p = p / (l + 1e-5)")],
}
