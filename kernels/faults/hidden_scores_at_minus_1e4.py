"""Hidden scores are -1e4: in a row whose own scores are all lower, the hidden keys win.

Kind            A
What is wrong   -1e4 instead of -inf, as if no score could be lower; a row that sees no key
                returns a mean of V, and one that sees only scores below -1e4 a mean over the
                keys that it should not see
Where seen      masked_bias = -1e4, which huggingface/transformers' GPT-2 had for its causal mask;
                microsoft/onnxruntime#28958 shows what rows without a key should give
Killed by       agreement, poison_masked, key_permutation, causal_prefix
Survives        rows that see a key, for scores of ordinary size: exp(-1e4) is 0
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s + block if additive else np.where(block, s, -1e4).astype(q.dtype)",
        ),
        (
            "s = np.where(visible, s, -np.inf).astype(q.dtype)",
            "s = np.where(visible, s, -1e4).astype(q.dtype)",
        ),
    ],
    "fp32_stats": [
        ("s = s.masked_fill(~mask, -math.inf)", "s = s.masked_fill(~mask, -1e4)"),
        ("s = s.masked_fill(j > i, -math.inf)", "s = s.masked_fill(j > i, -1e4)"),
    ],
    "triton_flash": [
        ('qk = tl.where(visible, qk, float("-inf"))', "qk = tl.where(visible, qk, -10000.0)"),
    ],
    "numpy_naive": [
        (
            "s = np.where(attn_mask.cpu().numpy(), s, -np.inf).astype(q.dtype)",
            "s = np.where(attn_mask.cpu().numpy(), s, -1e4).astype(q.dtype)",
        ),
        (
            "s = np.where(visible, s, -np.inf).astype(q.dtype)",
            "s = np.where(visible, s, -1e4).astype(q.dtype)",
        ),
    ],
}
