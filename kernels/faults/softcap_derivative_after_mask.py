"""The derivative of the cap is formed after ALiBi, bias and mask have joined the score.

Kind            P
What is wrong   1 - (S / cap)^2 is formed of the whole score S: wrong beside a bias, and minus
                infinity for hidden keys, whose weight 0 then makes a NaN
Where seen      openxla/tokamax#1121 (the derivative must be captured before masking)
Killed by       gradients
Survives        a softcap alone
"""

edits = {
    "fp32_backward": [
        (
            "slope = 1 - (s / softcap) ** 2",
            "slope = None",
        ),
        (
            "p = torch.exp(s - lse_ref[:, :, rows])",
            """
if softcap:
    slope = 1 - (s / softcap) ** 2
p = torch.exp(s - lse_ref[:, :, rows])
""",
        ),
    ],
    "triton_backward": [
        (
            'qk = tl.where(visible, qk, float("-inf"))',
            """
qk = tl.where(visible, qk, float("-inf"))
if softcap is not None:
    capped = qk / softcap
""",
        ),
    ],
}
