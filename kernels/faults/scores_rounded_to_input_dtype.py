"""Scores are stored in the input dtype before the softmax.

Kind            C
What is wrong   q.k times scale is rounded to float16 or bfloat16: an error of u|s| in every
                exponent, where the contract has float32
Where seen      philipturner/metal-flash-attention#8 kept the matrix of scores in half
                precision; so does every softmax that is written as a chain of half-precision
                operators
Killed by       agreement
Survives        float32 and float64, where nothing is rounded; scores below 1, as randn with the
                default scale gives: their rounding is lost in that of P
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            (
                "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale\n"
                "s = to_array(to_tensor(s, query))"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            "s = ((q @ k.transpose(-1, -2)) * sm_scale).to(dtype).to(stats)",
        ),
    ],
    "triton_flash": [
        (
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale',
            (
                'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale\n'
                "qk = qk.to(q.dtype).to(tl.float32)"
            ),
        ),
    ],
    "numpy_naive": [
        (
            "s = (q @ k.swapaxes(-1, -2)) * sm_scale",
            ("s = (q @ k.swapaxes(-1, -2)) * sm_scale\ns = to_array(to_tensor(s, query))"),
        ),
    ],
}
