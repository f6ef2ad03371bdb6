"""Every batch item reads the keys of the first.

Kind            I
What is wrong   K's batch stride is left out, V's is there
Where seen      Dao-AILab/flash-attention#772 (another batch item's slot of the cache was used);
                pytorch/pytorch#139462 lost the batch index of one operand
Killed by       agreement
Survives        a batch of one; keys that are shared by the batch
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            "s = (q @ k[:1, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
        ),
    ],
    "fp32_stats": [
        (
            "k, v = key[:, :, cols].to(stats), value[:, :, cols].to(stats)",
            "k, v = key[:1, :, cols].to(stats), value[:, :, cols].to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "k_ptrs = K + off_z * stride_kz + off_hkv * stride_kh",
            "k_ptrs = K + off_hkv * stride_kh",
        ),
    ],
    "numpy_naive": [
        ("s = (q @ k.swapaxes(-1, -2)) * sm_scale", "s = (q @ k[:1].swapaxes(-1, -2)) * sm_scale"),
    ],
}
