"""The group of query heads is rounded up to a power of two.

Kind            I
What is wrong   h // next_power_of_two(group): right for 2, 4 and 8 query heads a key head,
                wrong for 3, 5 and 6
Where seen      vllm-project/vllm#18100 (a ratio of 5) and flashinfer-ai/flashinfer#4525 (groups
                that are no multiple of 8) broke on such ratios
Killed by       agreement
Survives        groups of 1, 2, 4 and 8, which nearly all tests use. In triton_flash interpreted
                everywhere: a group of 3 with two key heads needs 6 heads, and the interpreter
                gets 4
"""

edits = {
    "numpy_online": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            (
                "at = np.arange(q.shape[1]) // (1 << (group - 1).bit_length())\n"
                "k, v = k[:, at], v[:, at]"
            ),
        ),
    ],
    "fp32_stats": [
        (
            (
                "key, value = key.repeat_interleave(group, dim=1),"
                " value.repeat_interleave(group, dim=1)"
            ),
            (
                "at = torch.arange(heads, device=device) // (1 << (group - 1).bit_length())\n"
                "key, value = key[:, at], value[:, at]"
            ),
        ),
    ],
    "triton_flash": [
        (
            "group = heads // key.shape[1] if enable_gqa else 1",
            "group = triton.next_power_of_2(heads // key.shape[1]) if enable_gqa else 1",
        ),
    ],
    "numpy_naive": [
        (
            "k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)",
            (
                "at = np.arange(q.shape[1]) // (1 << (group - 1).bit_length())\n"
                "k, v = k[:, at], v[:, at]"
            ),
        ),
    ],
}
