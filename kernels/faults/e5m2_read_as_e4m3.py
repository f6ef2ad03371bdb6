"""The bits of e5m2 values are read as e4m3.

Kind            Q
What is wrong   the cache's writer and its reader disagree on the format, which both take for
                one kind of byte
Where seen      vllm-project/vllm#54341
Killed by       agreement
Survives        e4m3; values of 0 and 2, which are the same in both
"""

edits = {
    "fp32_float8": [
        (
            "k_all, v_all = key.to(fp32), value.to(fp32)",
            "k_all, v_all = key.to(fp32), value.view(torch.float8_e4m3fn).to(fp32)",
        ),
    ],
}
