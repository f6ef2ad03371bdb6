"""The scale multiplies both q and the scores.

Kind            G
What is wrong   the caller's q is scaled, and q.k again
Where seen      wrappers that scale q before a kernel that scales too; iree-org/iree#16679 moved
                the scale onto q and was reviewed for which scale it used
Killed by       agreement
Survives        scales of 0 and 1, and the default of D = 1; equal scores, but for the lse
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            "s = ((q * sm_scale) @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
        ),
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            "s = ((q * sm_scale) @ k.transpose(-1, -2)) * sm_scale",
        ),
    ],
    "triton_flash": [
        (
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale',
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale * sm_scale',
        ),
    ],
    "numpy_naive": [
        (
            "s = (q @ k.swapaxes(-1, -2)) * sm_scale",
            "s = ((q * sm_scale) @ k.swapaxes(-1, -2)) * sm_scale",
        ),
    ],
}
