"""Keys are shared out evenly among the splits, and the remainder is dropped.

Kind            L
What is wrong   a split has Lk // splits keys, so that the last Lk % splits keys are in none
Where seen      sgl-project/sglang#2465 (more than one split is wrong);
                flashinfer-ai/flashinfer#1206 (chunks that do not fit the tile)
Killed by       agreement, equal_scores
Survives        one split; Lk that the number of splits divides. triton_flash splits beyond 64
                keys, and never with is_causal
"""

from . import by_splits

_DROPPED = [("each = -(-len_k // num_splits)", "each = len_k // num_splits")]

edits = by_splits(
    """
lse = torch.logsumexp(lses, 0)
weights = torch.exp(lses - lse.masked_fill(lse == -math.inf, 0.0))[..., None]
return (weights * outs).sum(0).to(query.dtype), lse
""",
    before="each = key.shape[2] // (key.shape[2] // 64 + 1)",
    each="each",
    end="key.shape[2] - each + 1",
) | {
    "numpy_online": _DROPPED,
    "fp32_stats": _DROPPED,
    "triton_decode": [
        (
            "len_split = tl.cdiv(num_blocks_n, num_splits) * BLOCK_N",
            "len_split = num_blocks_n // num_splits * BLOCK_N",
        ),
    ],
}
