"""1 / l is an instruction's estimate of eight bits, without a Newton step.

Kind            C
What is wrong   the output is multiplied by a reciprocal of eight bits instead of divided by l:
                a relative error of up to 2^-9, common to a row
Where seen      pytorch/pytorch#47476 and wingertge/macerator#46: ARM's vrecpe, 1/1 = 0.998;
                tenstorrent/tt-metal#53106
Killed by       agreement
Survives        bfloat16, where it is one more rounding of the output, which P's share of the
                bound hides; rows whose l is a power of two, as with one key or equal scores of
                2^n keys
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            ("out = acc * to_array(torch.from_numpy(1 / np.where(l_i == 0, 1, l_i)).bfloat16())"),
        ),
    ],
    "fp32_stats": [
        (
            "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)",
            (
                "r = (1 / l_i.masked_fill(l_i == 0, 1.0)).to(torch.bfloat16).to(stats)\n"
                "out[:, :, rows] = (acc * r).to(dtype)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "out = (acc / l_i[:, None]).to(Out.dtype.element_ty)",
            (
                "r = (1.0 / l_i).to(tl.bfloat16).to(tl.float32)\n"
                "out = (acc * r[:, None]).to(Out.dtype.element_ty)"
            ),
        ),
    ],
}
