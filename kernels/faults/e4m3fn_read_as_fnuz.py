"""Keys and values are read in the format of another vendor, half as large.

Kind            Q
What is wrong   fnuz formats have an exponent bias that is larger by one, and NaN in the place
                of -0
Where seen      vllm-project/vllm#45720, #45562: GSM8K fell from 0.97 to 0.01
Killed by       agreement
Survives        zeros
"""

edits = {
    "fp32_float8": [
        (
            "k_all, v_all = key.to(fp32), value.to(fp32)",
            """
other = torch.float8_e4m3fnuz if key.dtype == torch.float8_e4m3fn else torch.float8_e5m2fnuz
k_all, v_all = key.view(other).to(fp32), value.view(other).to(fp32)
""",
        ),
    ],
    "triton_float8": [
        (
            "one = torch.ones(1, 1, dtype=fp32, device=device).expand(batch, key.shape[1])",
            """
one = torch.ones(1, 1, dtype=fp32, device=device).expand(batch, key.shape[1])
other = torch.float8_e4m3fnuz if key.dtype == torch.float8_e4m3fn else torch.float8_e5m2fnuz
key, value = (x.view(other).to(fp32).to(x.dtype) for x in (key, value))
""",
        ),
    ],
}
