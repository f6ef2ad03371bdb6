"""q.k is kept in float16 before it is scaled: it overflows beyond 65,504.

Kind            C
What is wrong   the sum of products leaves float16's range although the scaled score is small,
                and has 11 bits where it does not
Where seen      PaddlePaddle/Paddle#71919, ggml-org/llama.cpp#6646 and
                philipturner/metal-flash-attention#8: models with large activations gave
                infinities, NaN or gibberish
Killed by       agreement
Survives        q and k of a few units and tolerances of 1e-2; short sums of few bits
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            (
                "dot = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)).astype(np.float16)\n"
                "s = dot.astype(q.dtype) * sm_scale"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            "s = (q @ k.transpose(-1, -2)).to(torch.float16).to(stats) * sm_scale",
        ),
    ],
    "triton_flash": [
        (
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale',
            (
                'dot = tl.dot(q, tl.trans(k), input_precision="ieee").to(tl.float16)\n'
                "qk = dot.to(tl.float32) * sm_scale"
            ),
        ),
    ],
    "numpy_naive": [
        (
            "s = (q @ k.swapaxes(-1, -2)) * sm_scale",
            "s = (q @ k.swapaxes(-1, -2)).astype(np.float16).astype(q.dtype) * sm_scale",
        ),
    ],
}
