"""Keys are grouped rightly, values by h % Hkv.

Kind            I
What is wrong   two lines compute the head of K and of V, and only one is right: the scores and
                the lse are exact
Where seen      onnx/onnx#7274 replaced Tile in two places, for K and for V;
                pytorch/pytorch#133495 used K's index for V
Killed by       agreement
Survives        Hkv = Hq and Hkv = 1; any test of the lse or of the weights alone
"""

edits = {
    "numpy_online": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            "k, v = np.repeat(k, group, axis=1), np.tile(v, (1, group, 1, 1))",
        ),
    ],
    "fp32_stats": [
        (
            (
                "key, value = key.repeat_interleave(group, dim=1),"
                " value.repeat_interleave(group, dim=1)"
            ),
            "key, value = key.repeat_interleave(group, dim=1), value.repeat(1, group, 1, 1)",
        ),
    ],
    "triton_flash": [
        (
            "v_ptrs = V + off_z * stride_vz + off_hkv * stride_vh",
            "v_ptrs = V + off_z * stride_vz + off_h % (H // group) * stride_vh",
        ),
    ],
    "numpy_naive": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            "k, v = np.repeat(k, group, axis=1), np.tile(v, (1, group, 1, 1))",
        ),
    ],
}
