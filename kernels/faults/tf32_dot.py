"""float32 products are rounded to TF32, as tl.dot does where nobody asks for more.

Kind            C
What is wrong   tl.dot without input_precision="ieee": a tensor core reads 10 of a float32's
                23 stored bits, so that scores are off by 2^-10 of |q||k|
Where seen      tl.dot's default on NVIDIA GPUs since TF32 exists; kernels that were only ever
                run in half precision, where it changes nothing
Killed by       agreement, constant_v
Survives        inputs of few bits (zeros, ones, powers of two), float16 and bfloat16, and
                every tolerance of 1e-2
"""

edits = {
    "triton_flash": [
        (
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale',
            "qk = tl.dot(q, tl.trans(k)) * sm_scale",
        ),
        (
            'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")',
            "acc = tl.dot(p.to(v.dtype), v, acc)",
        ),
    ],
}
