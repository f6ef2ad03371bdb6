"""The normalizer, and so lse, is summed from weights that were rounded for the tensor core.

Kind            D
What is wrong   harmless in out, where the same weights are summed above; lse is off by their
                rounding errors, which do not cancel in one of few keys
Where seen      ROCm/FlyDSL#1020 has the opposite order in float8 (rounded in P.V, not in the
                sum); the contract's default for lse is before rounding
Killed by       agreement
Survives        float64 and float32, where nothing is rounded and the edit changes nothing; one
                key, whose weight is 1; many keys, whose errors average out
"""

edits = {
    "numpy_online": [
        (
            "l_i = l_i * alpha + p.sum(axis=-1, keepdims=True)",
            "l_i = l_i * alpha + to_array(to_tensor(p, query)).sum(axis=-1, keepdims=True)",
        ),
    ],
    "fp32_stats": [
        (
            "l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)",
            "l_i = l_i * alpha + p.to(dtype).to(stats).sum(dim=-1, keepdim=True)",
        ),
    ],
    "triton_flash": [
        (
            "l_i = l_i * alpha + tl.sum(p, 1)",
            "l_i = l_i * alpha + tl.sum(p.to(V.dtype.element_ty).to(tl.float32), 1)",
        ),
    ],
    "numpy_naive": [
        (
            "l = p.sum(axis=-1, keepdims=True)",
            "l = to_array(to_tensor(p, query)).sum(axis=-1, keepdims=True)",
        ),
    ],
}
