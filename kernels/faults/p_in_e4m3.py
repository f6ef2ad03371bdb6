"""P is cast to float8 e4m3 without a scale, after the normalizer has summed it.

Kind            C
What is wrong   weights below 2^-10 of the row's largest become 0 but still count in l, and the
                others keep four bits
Where seen      ROCm/FlyDSL#1020: V all ones gave 0.637, and most rows' weights did not sum to 1
Killed by       agreement
Survives        rows whose weights are all equal or hidden; a tolerance for float8 and inputs of
                one magnitude
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            (
                "p = torch.from_numpy(p).to(torch.float8_e4m3fn).to(torch.float32).numpy()\n"
                "acc = acc * alpha + p @ v[:, :, start_n:end_n]"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc * alpha + p.to(torch.float8_e4m3fn).to(stats) @ v",
        ),
    ],
    "triton_flash": [
        (
            'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")',
            'acc = tl.dot(p.to(tl.float8e4nv).to(v.dtype), v, acc, input_precision="ieee")',
        ),
    ],
}
