"""In a window dK and dV leave out the queries that see the end of a block of keys alone.

Kind            P
What is wrong   the loop over queries ends with the last one whose window holds the block's first
                key, where its last key belongs
Where seen      no public issue names it; NVIDIA/cudnn-frontend#866 and ROCm/aiter#3742 add this
                bound to a loop that had none
Killed by       gradients, value_gradient_sum
Survives        windows without a left end; blocks of queries that reach far enough by being whole
"""

edits = {
    "fp32_backward": [
        (
            "end = min(end, cols.stop - shift + left)",
            "end = min(end, cols.start - shift + left + 1)",
        ),
    ],
    "triton_backward": [
        (
            "last_n = tl.minimum(len_k, start_n + BLOCK_N) - 1",
            "last_n = start_n",
        ),
    ],
}
