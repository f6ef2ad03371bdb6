"""Query head h takes the factors of key head h mod Hkv.

Kind            Q
What is wrong   keys and values are read at h // (Hq // Hkv), their factors at h % Hkv
Where seen      as kv_head_modulo; flashinfer-ai/flashinfer#4153 maps heads for keys and for
                their scales apart
Killed by       agreement
Survives        Hkv = Hq, Hkv = 1, a factor per tensor
"""

edits = {
    "fp32_float8": [
        (
            "factors = descale.repeat_interleave(group, dim=1)",
            "factors = descale.repeat(1, group, *[1] * (descale.dim() - 2))",
        ),
    ],
    "triton_float8": [
        (
            "ks_ptrs = KScale + off_z * stride_ksz + off_hkv * stride_ksh",
            "ks_ptrs = KScale + off_z * stride_ksz + off_h % (H // group) * stride_ksh",
        ),
        (
            "vs_ptrs = VScale + off_z * stride_vsz + off_hkv * stride_vsh",
            "vs_ptrs = VScale + off_z * stride_vsz + off_h % (H // group) * stride_vsh",
        ),
    ],
}
