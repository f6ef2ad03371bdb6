"""Weights below the input dtype's normal range become 0 in P.V.

Kind            C
What is wrong   P is rounded to float16 by an instruction that flushes subnormals: weights below
                2^-14 vanish from the output but still count in l
Where seen      ROCm/FlyDSL#1020 in its float16 form: small weights flushed in P, counted in the
                normalizer
Killed by       agreement
Survives        float32, float64 and bfloat16, whose normal range the contract itself ends at;
                scores within 9.7 of the maximum; few keys
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            (
                "acc = acc * alpha + np.where(p < torch.finfo(query.dtype).tiny, 0, p) @ v[:,"
                " :, start_n:end_n]"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            (
                "p = p.masked_fill(p < torch.finfo(dtype).tiny, 0.0)\n"
                "acc = acc * alpha + p.to(dtype).to(stats) @ v"
            ),
        ),
    ],
    "triton_flash": [
        (
            'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")',
            (
                "if v.dtype == tl.float16:\n"
                "    p = tl.where(p < 0.00006103515625, 0.0, p)\n"
                'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")'
            ),
        ),
    ],
}
