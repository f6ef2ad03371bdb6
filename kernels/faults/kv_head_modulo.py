"""Query head h reads key head h % Hkv.

Kind            I
What is wrong   keys and values are tiled over the query heads instead of repeated: h % Hkv
                where h // group belongs
Where seen      Dao-AILab/flash-attention#648 (repeat for repeat_interleave), onnx/onnx#7274
                (Tile), ekzhang/jax-js#180; apple/axlearn#842 undid the same
Killed by       agreement
Survives        Hkv = Hq and Hkv = 1, the two ends that are tested; heads with equal keys and
                values
"""

edits = {
    "numpy_online": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            "k, v = np.tile(k, (1, group, 1, 1)), np.tile(v, (1, group, 1, 1))",
        ),
    ],
    "fp32_stats": [
        (
            (
                "key, value = key.repeat_interleave(group, dim=1),"
                " value.repeat_interleave(group, dim=1)"
            ),
            "key, value = key.repeat(1, group, 1, 1), value.repeat(1, group, 1, 1)",
        ),
    ],
    "triton_flash": [
        ("off_hkv = off_h // group", "off_hkv = off_h % (H // group)"),
    ],
    "numpy_naive": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            "k, v = np.tile(k, (1, group, 1, 1)), np.tile(v, (1, group, 1, 1))",
        ),
    ],
}
