"""The block size of factors is derived from two shapes.

Kind            Q
What is wrong   ceil(Lq / blocks) is the block size only where the last block is whole
Where seen      NVIDIA/TensorRT-Model-Connect#1115, in review
Killed by       agreement
Survives        lengths that are a multiple of the block size, or one block; a factor per head
"""

edits = {
    "fp32_float8": [
        (
            "a = of_q[:, :, i // DESCALE_M, None]",
            "a = of_q[:, :, i // -(-len_q // of_q.shape[2]), None]",
        ),
    ],
}
