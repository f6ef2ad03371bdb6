"""The loop over the queries of a block of keys takes the sides of the window as those of a query.

Kind            P
What is wrong   key j is seen by queries j - right to j + left; the loop runs from j - left to j +
                right, and what lies beyond is left out of dK and dV
Where seen      no public issue names it; the bound that NVIDIA/cudnn-frontend#866 and
                ROCm/aiter#3742 add to this loop is that of the other loop turned round
Killed by       gradients, value_gradient_sum
Survives        symmetric windows, and those with one end
"""

edits = {
    "fp32_backward": [
        (
            "begin = max(begin, cols.start - shift - right)",
            "begin = max(begin, cols.start - shift - (left if left >= 0 else right))",
        ),
        (
            "end = min(end, cols.stop - shift + left)",
            "end = min(end, cols.stop - shift + (right if right >= 0 else left))",
        ),
    ],
    "triton_backward": [
        (
            "first_m = tl.maximum(first_m, (start_n - shift - window_right) // BLOCK_M * BLOCK_M)",
            """
begin_m = start_n - shift - window_right
if window_left is not None:
    begin_m = start_n - shift - window_left
first_m = tl.maximum(first_m, begin_m // BLOCK_M * BLOCK_M)
""",
        ),
        (
            "end_m = tl.minimum(end_m, last_n - shift + window_left + 1)",
            """
last_m = last_n - shift + window_left
if window_right is not None:
    last_m = last_n - shift + window_right
end_m = tl.minimum(end_m, last_m + 1)
""",
        ),
    ],
}
