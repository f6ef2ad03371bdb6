"""Values are multiplied by the keys' factor.

Kind            Q
What is wrong   k_scale and v_scale lie side by side, or are one kv_scale
Where seen      neuralmagic/AutoFP8#25 (one kv_scale for both); vllm-project/vllm#55557 tests
                for a swap of the two
Killed by       agreement
Survives        factors of k and v that are equal
"""

edits = {
    "fp32_float8": [
        (
            "b, c = of_k[:, :, n, None, None], of_v[:, :, n, None, None]",
            "b, c = of_k[:, :, n, None, None], of_k[:, :, n, None, None]",
        ),
    ],
    "triton_float8": [
        (
            "v_scale = tl.load(vs_ptrs + start_n // PER_N * stride_vsn)",
            "v_scale = tl.load(ks_ptrs + start_n // PER_N * stride_ksn)",
        ),
    ],
}
