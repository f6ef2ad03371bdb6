"""All query heads of a grouped call read key head 0.

Kind            I
What is wrong   grouped attention is taken for multi-query attention: one key head is assumed as
                soon as there are fewer than query heads
Where seen      LMCache/LMCache#3092 indexed keys without the map of heads at all;
                vllm-project/vllm#42650 planned with another head count than the layer's
Killed by       agreement
Survives        Hkv = Hq and Hkv = 1
"""

edits = {
    "numpy_online": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            "k, v = (k[:, :1], v[:, :1]) if group > 1 else (k, v)",
        ),
    ],
    "fp32_stats": [
        (
            (
                "key, value = key.repeat_interleave(group, dim=1),"
                " value.repeat_interleave(group, dim=1)"
            ),
            (
                "if group > 1:\n"
                "    key, value = (x[:, :1].expand(-1, heads, -1, -1) for x in (key, value))"
            ),
        ),
    ],
    "triton_flash": [
        ("off_hkv = off_h // group", "off_hkv = tl.where(group > 1, 0, off_h)"),
    ],
}
