"""The bits of e5m2 values are read as e4m3.

Kind            Q
What is wrong   the cache's writer and its reader disagree on the format, which both take for
                one kind of byte
Where seen      vllm-project/vllm#54341
Killed by       agreement
Survives        e4m3; values of 0 and 2, which are the same in both
"""

edits = {
    "fp32_float8": [
        (
            "k_all, v_all = key.to(fp32), value.to(fp32)",
            "k_all, v_all = key.to(fp32), value.view(torch.float8_e4m3fn).to(fp32)",
        ),
    ],
    "triton_float8": [
        (
            (
                "v = tl.load(v_ptrs + n * stride_vn, mask=(n < len_k) & (offs_dv < head_dim_v), "
                "other=0.0)"
            ),
            (
                "v = tl.load(v_ptrs + n * stride_vn, mask=(n < len_k) & (offs_dv < head_dim_v), "
                "other=0.0).to(tl.float8e4nv, bitcast=True)"
            ),
        ),
        (
            "acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v) * v_scale",
            "acc = acc * alpha[:, None] + tl.dot(p.to(tl.float8e4nv), v) * v_scale",
        ),
    ],
}
