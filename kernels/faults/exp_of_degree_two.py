"""exp is 2^n times a polynomial of degree two.

Kind            C
What is wrong   the best one with exp(0) = 1 is off by 2e-3 relative, where float32 needs degree
                six and half precision three
Where seen      openvinotoolkit/openvino#37857 offers degree one for softmax; sonos/tract#2318
                found a piecewise linear exp half a percent off in attention;
                pytorch/pytorch#176881 uses degree three and says for which dtypes
Killed by       agreement
Survives        equal scores and few keys; in bfloat16 the output nearly always, and the lse
                shows it
"""

edits = {
    "numpy_online": [
        (
            "p = np.exp(s - m_ref)",
            (
                "x = np.maximum((s - m_ref) * math.log2(math.e), -2000)\n"
                "f = x - np.floor(x)\n"
                "p = np.exp2(np.floor(x)) * (1.0 + f * (0.6660 + f * 0.3299))"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "p = torch.exp(s - m_ref)",
            (
                "x = ((s - m_ref) * math.log2(math.e)).clamp(min=-2000)\n"
                "f = x - x.floor()\n"
                "p = torch.exp2(x.floor()) * (1.0 + f * (0.6660 + f * 0.3299))"
            ),
        ),
    ],
    "triton_flash": [
        (
            "p = tl.exp(qk - m_ref[:, None])",
            (
                "x = tl.maximum((qk - m_ref[:, None]) * 1.4426950408889634, -2000.0)\n"
                "f = x - tl.floor(x)\n"
                "p = tl.exp2(tl.floor(x)) * (1.0 + f * (0.6660 + f * 0.3299))"
            ),
        ),
    ],
}
