"""Scores are divided by the scale instead of multiplied.

Kind            G
What is wrong   q.k / scale: sqrt(D) where 1 / sqrt(D) belongs, and 0 / 0 for a scale of 0
Where seen      AI-Hypercomputer/maxtext#1370 and esceptico/perceiver-io#9 both divide by D^-0.5
Killed by       agreement
Survives        a scale of 1 or -1, which is the default of D = 1; equal scores, but for the lse
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) / sm_scale",
        ),
    ],
    "fp32_stats": [
        ("s = (q @ k.transpose(-1, -2)) * sm_scale", "s = (q @ k.transpose(-1, -2)) / sm_scale"),
    ],
    "triton_flash": [
        (
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale',
            'qk = tl.dot(q, tl.trans(k), input_precision="ieee") / sm_scale',
        ),
    ],
    "numpy_naive": [
        ("s = (q @ k.swapaxes(-1, -2)) * sm_scale", "s = (q @ k.swapaxes(-1, -2)) / sm_scale"),
    ],
}
