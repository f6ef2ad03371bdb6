"""Hidden scores are the smallest finite number: a row that sees no key returns a mean of V.

Kind            A
What is wrong   finfo.min instead of -inf, so that the guard for a maximum of -inf never acts;
                in a row without a key all weights are exp(0)
Where seen      onnx/onnx#8068 and microsoft/onnxruntime#28958 (is_causal with a mask empties
                rows); uniform rows also in tenstorrent/tt-metal#56430
Killed by       agreement
Survives        rows that see a key: exp(finfo.min - m) is 0 as well, and a hidden block that
                comes first is rescaled by 0; additive masks of -inf in the kernels that add
                them
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s + block if additive else np.where(block, s, np.finfo(q.dtype).min)",
        ),
        (
            "s = np.where(visible, s, -np.inf).astype(q.dtype)",
            "s = np.where(visible, s, np.finfo(q.dtype).min)",
        ),
    ],
    "fp32_stats": [
        ("s = s.masked_fill(~mask, -math.inf)", "s = s.masked_fill(~mask, torch.finfo(stats).min)"),
        ("s = s.masked_fill(j > i, -math.inf)", "s = s.masked_fill(j > i, torch.finfo(stats).min)"),
    ],
    "triton_flash": [
        (
            'qk = tl.where(visible, qk, float("-inf"))',
            "qk = tl.where(visible, qk, -3.4028234663852886e38)",
        ),
    ],
    "numpy_naive": [
        (
            "s = np.where(attn_mask.cpu().numpy(), s, -np.inf).astype(q.dtype)",
            "s = np.where(attn_mask.cpu().numpy(), s, np.finfo(q.dtype).min)",
        ),
        (
            "s = np.where(visible, s, -np.inf).astype(q.dtype)",
            "s = np.where(visible, s, np.finfo(q.dtype).min)",
        ),
    ],
}
