"""The output passes through a bfloat16 buffer before it is stored.

Kind            C
What is wrong   the epilogue's staging tile is bfloat16 for every dtype: the output is rounded
                twice, first to eight bits
Where seen      epilogues that were written for bfloat16 models; tests there use tolerances of
                1e-2, which eight bits meet
Killed by       agreement
Survives        bfloat16, where the second rounding changes nothing; outputs of few bits, as V
                of ones gives
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            (
                "out = acc / np.where(l_i == 0, 1, l_i)\n"
                "out = to_array(torch.from_numpy(out).bfloat16())"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)",
            (
                "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0,"
                " 1.0)).to(torch.bfloat16).to(dtype)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "out = (acc / l_i[:, None]).to(Out.dtype.element_ty)",
            "out = (acc / l_i[:, None]).to(tl.bfloat16).to(Out.dtype.element_ty)",
        ),
    ],
}
