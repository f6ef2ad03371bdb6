"""q times scale is rounded to the input dtype before q.k.

Kind            C
What is wrong   folding the scale into a half-precision q costs a rounding of u in every term of
                q.k, in no float32 copy of q
Where seen      antirez/h3.c#3 rounds scaled queries to bfloat16; hao-ai-lab/FastVideo#1730
                rounds scaled keys in its backward, where gradients were off by orders of
                magnitude
Killed by       agreement
Survives        float32 and float64; a scale that is a power of two, which is the default of
                head sizes 16, 64 and 256; scores below 1
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            (
                "s = to_array(to_tensor(q * sm_scale, query)) @ k[:, :,"
                " start_n:end_n].swapaxes(-1, -2)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            "s = (q * sm_scale).to(dtype).to(stats) @ k.transpose(-1, -2)",
        ),
    ],
    "triton_flash": [
        (
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale',
            (
                "qk = tl.dot((q.to(tl.float32) * sm_scale).to(q.dtype), tl.trans(k),"
                ' input_precision="ieee")'
            ),
        ),
    ],
    "numpy_naive": [
        (
            "s = (q @ k.swapaxes(-1, -2)) * sm_scale",
            "s = to_array(to_tensor(q * sm_scale, query)) @ k.swapaxes(-1, -2)",
        ),
    ],
}
