"""The accumulator is stored in the input dtype after each block.

Kind            C
What is wrong   acc is rounded to float16 or bfloat16 at every block, so that the error grows
                with the number of blocks, and a float16 one overflows
Where seen      RL-Align/RL-Kernel#237 added to a bfloat16 buffer in memory, block by block;
                Dao-AILab/flash-attention#543 asks for it as a faster option and is told why not
Killed by       agreement, one_hot
Survives        float32 and float64, where nothing is rounded; one block: rounding acc and then
                the quotient costs one more rounding, which P's share of the bound hides
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            "acc = to_array(to_tensor(acc * alpha + p @ v[:, :, start_n:end_n], query))",
        ),
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = (acc * alpha + p.to(dtype).to(stats) @ v).to(dtype).to(stats)",
        ),
    ],
    "triton_flash": [
        (
            'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")',
            (
                'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")\n'
                "acc = acc.to(q.dtype).to(tl.float32)"
            ),
        ),
    ],
}
