"""All batch elements share the factors of the first.

Kind            Q
What is wrong   the stride of factors over the batch is taken for 0
Where seen      Dao-AILab/flash-attention#1365: factors used to be one for all
Killed by       agreement
Survives        a batch of one; a factor per tensor
"""

edits = {
    "fp32_float8": [
        (
            "b, c = of_k[:, :, n, None, None], of_v[:, :, n, None, None]",
            "b, c = of_k[:1, :, n, None, None], of_v[:1, :, n, None, None]",
        ),
    ],
    "triton_float8": [
        (
            "ks_ptrs = KScale + off_z * stride_ksz + off_hkv * stride_ksh",
            "ks_ptrs = KScale + off_hkv * stride_ksh",
        ),
        (
            "vs_ptrs = VScale + off_z * stride_vsz + off_hkv * stride_vsh",
            "vs_ptrs = VScale + off_hkv * stride_vsh",
        ),
    ],
}
