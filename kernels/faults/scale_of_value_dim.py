"""The default scale is 1 / sqrt(Dv).

Kind            G
What is wrong   the head size is read from v instead of q
Where seen      juho-lee/set_transformer#18 (dim_V in the scale);
                Graylab/DL4Proteins-notebooks#12 and FareedKhan-dev/train-llm-from-scratch#3
                take another size that is not the head's
Killed by       agreement
Survives        Dv = D, which is all that most tests draw; calls that pass a scale
"""

edits = {
    "numpy_online": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(1 / math.sqrt(v.shape[-1]) if scale is None else scale)",
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            "sm_scale = 1 / math.sqrt(value.shape[3]) if scale is None else scale",
        ),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            "sm_scale = 1 / math.sqrt(head_dim_v) if scale is None else float(scale)",
        ),
    ],
    "numpy_naive": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            "sm_scale = q.dtype.type(1 / math.sqrt(v.shape[-1]) if scale is None else scale)",
        ),
    ],
}
