"""tanh has eleven bits.

Kind            C
What is wrong   the hardware's approximate tanh, off by 2^-11, times the cap: 50 caps are off by
                0.02
Where seen      attention-gym's softcap offers tanh.approx.f32, whose error PTX's manual gives
                as 2^-11
Killed by       agreement
Survives        caps below 1; bfloat16 outputs often, where the lse shows it
"""

edits = {
    "numpy_online": [
        (
            "s = softcap * np.tanh(s / softcap)",
            "s = (softcap * np.tanh(s / softcap).astype(np.float16)).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        (
            "s = softcap * torch.tanh(s / softcap)",
            "s = softcap * torch.tanh(s / softcap).to(torch.float16).to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "qk = softcap * tanh(qk / softcap)",
            "qk = softcap * tanh(qk / softcap).to(tl.float16).to(tl.float32)",
        ),
    ],
    "triton_decode": [
        (
            "qk = softcap * tanh(qk / softcap)",
            "qk = softcap * tanh(qk / softcap).to(tl.float16).to(tl.float32)",
        ),
    ],
}
