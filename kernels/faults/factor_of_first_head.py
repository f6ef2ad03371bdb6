"""All heads share the factors of the first.

Kind            Q
What is wrong   a kernel that was written for a factor per tensor reads one number, and is
                given one for each key head
Where seen      sgl-project/sgl-kernel-xpu#252, in review
Killed by       agreement
Survives        a factor per tensor; one key head
"""

edits = {
    "fp32_float8": [
        (
            "b, c = of_k[:, :, n, None, None], of_v[:, :, n, None, None]",
            "b, c = of_k[:, :1, n, None, None], of_v[:, :1, n, None, None]",
        ),
    ],
    "triton_float8": [
        (
            "ks_ptrs = KScale + off_z * stride_ksz + off_hkv * stride_ksh",
            "ks_ptrs = KScale + off_z * stride_ksz",
        ),
        (
            "vs_ptrs = VScale + off_z * stride_vsz + off_hkv * stride_vsh",
            "vs_ptrs = VScale + off_z * stride_vsz",
        ),
    ],
}
