"""The backward recomputes the scores without the softcap.

Kind            P
What is wrong   P = exp(S - lse) is formed of raw scores and of the lse of capped ones, and the
                derivative is left out with the cap
Where seen      sgl-project/sgl-kernel-xpu#491 and vllm-project/vllm-metal#666 (accepted, and not
                forwarded); Dao-AILab/flash-attention#2402 (no backward of the cap)
Killed by       gradients, value_gradient_sum
Survives        scores far below the cap; no forward check sees it
"""

edits = {
    "fp32_backward": [
        (
            'is_causal, softcap = options["is_causal"], options["softcap"]',
            'is_causal, softcap = options["is_causal"], 0.0',
        ),
    ],
    "triton_backward": [
        (
            'numbers = sm_scale, options["softcap"] or None, left, right',
            "numbers = sm_scale, None, left, right",
        ),
    ],
}
