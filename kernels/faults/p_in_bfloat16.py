"""P is always rounded to bfloat16, whatever the inputs are.

Kind            C
What is wrong   the cast before P.V names bfloat16 instead of the dtype of v, so that float16
                weights lose three bits and float32 ones sixteen
Where seen      kernels written for one dtype and later called with another;
                ggml-org/llama.cpp#6646 is the same with a fixed float16
Killed by       agreement
Survives        bfloat16, where it is right; weights that are powers of two or all equal to 1
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            (
                "acc = acc * alpha + to_array(torch.from_numpy(p).bfloat16()) @ v[:, :,"
                " start_n:end_n]"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc * alpha + p.to(torch.bfloat16).to(stats) @ v",
        ),
    ],
    "triton_flash": [
        (
            'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")',
            'acc = tl.dot(p.to(tl.bfloat16).to(v.dtype), v, acc, input_precision="ieee")',
        ),
    ],
}
