"""The factor that rescales the accumulator is rounded to the input dtype.

Kind            C
What is wrong   acc is float32, but is multiplied by an alpha of float16 or bfloat16 at every
                block that raises the maximum, and l by the exact one: the weights of early keys
                drift by half a unit roundoff a block
Where seen      ggml-org/llama.cpp#24389 kept what goes from block to block in float16
Killed by       agreement
Survives        float32 and float64, where nothing is rounded; rows of a few dozen blocks, where
                the roundings of P and of the output hide it; a maximum that comes early
"""

edits = {
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc * alpha.to(dtype).to(stats) + p.to(dtype).to(stats) @ v",
        )
    ],
    "triton_flash": [
        ("acc = acc * alpha[:, None]", "acc = acc * alpha.to(q.dtype).to(tl.float32)[:, None]")
    ],
    "triton_decode": [
        ("acc = acc * alpha[:, None]", "acc = acc * alpha.to(q.dtype).to(tl.float32)[:, None]")
    ],
}
