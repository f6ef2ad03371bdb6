"""A negative scale is taken as positive.

Kind            G
What is wrong   q and k are each multiplied by the root of |scale|, and nobody puts the sign
                back
Where seen      pytorch/pytorch#105202: roots of the scale on q and k, wrong for a negative one
Killed by       agreement
Survives        scales of 0 and more; equal scores, but for the lse
"""

edits = {
    "numpy_online": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            (
                "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else"
                " abs(scale))"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else abs(scale)",
        ),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else abs(float(scale))",
        ),
    ],
    "numpy_naive": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            (
                "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else"
                " abs(scale))"
            ),
        ),
    ],
}
