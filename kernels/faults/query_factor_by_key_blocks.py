"""Queries take the factor of the block that a key at their place would be in.

Kind            Q
What is wrong   one block size is used for both, that of keys
Where seen      quantizers have two (thu-ml/SageAttention#167), whose kernels have to agree
                with them on both
Killed by       agreement
Survives        equal block sizes; one block of queries; a factor per head
"""

edits = {
    "fp32_float8": [
        (
            "a = of_q[:, :, i // DESCALE_M, None]",
            "a = of_q[:, :, i // DESCALE_N, None]",
        ),
    ],
    "triton_float8": [
        (
            (
                "qs_ptrs = QScale + off_z * stride_qsz + off_hkv * stride_qsh + m // PER_M * "
                "stride_qsm"
            ),
            (
                "qs_ptrs = QScale + off_z * stride_qsz + off_hkv * stride_qsh + m // PER_N * "
                "stride_qsm"
            ),
        ),
    ],
}
