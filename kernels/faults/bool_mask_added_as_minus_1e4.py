"""A bool mask adds -1e4 to hidden scores instead of replacing them.

Kind            A
What is wrong   a row that sees no key is the softmax of all of its scores, and a hidden score
                that lies 1e4 above the others takes the row
Where seen      google-research/bert, (1 - mask) * -10000, and models copied from it;
                tracel-ai/burn#4694 clamps by the same number
Killed by       agreement, poison_masked, key_permutation
Survives        rows that see a key, for scores of ordinary size: exp(-1e4) is 0
"""

edits = {
    "numpy_online": [
        (
            "s = s + block if additive else np.where(block, s, -np.inf).astype(q.dtype)",
            "s = s + block if additive else np.where(block, s, s - 1e4)",
        ),
    ],
    "fp32_stats": [("s = s.masked_fill(~mask, -math.inf)", "s = torch.where(mask, s, s - 1e4)")],
    "triton_flash": [("visible = mask", "qk = tl.where(mask, qk, qk - 10000.0)")],
    "numpy_naive": [
        (
            "s = np.where(attn_mask.cpu().numpy(), s, -np.inf).astype(q.dtype)",
            "s = np.where(attn_mask.cpu().numpy(), s, s - 1e4)",
        ),
    ],
}
