"""The causal mask is applied in the last block of keys alone.

Kind            E
What is wrong   one masked iteration after a loop without masks, right where BLOCK_M <=
                BLOCK_N; otherwise the diagonal crosses several blocks of keys
Where seen      a tail mask that is applied in causal blocks alone is
                Dao-AILab/flash-attention#443 and #334; commit bedcbd6a turns off block sizes
                that are wrong
Killed by       agreement, equal_scores, causal_prefix
Survives        calls that are not causal, one block of keys, configurations with BLOCK_M <=
                BLOCK_N
"""

edits = {
    "numpy_online": [("if is_causal: ...", "if is_causal and end_n == len_k: ...")],
    "fp32_stats": [
        ("if is_causal: ...", "if is_causal and cols.stop >= min(len_k, rows.stop): ..."),
    ],
    "triton_flash": [
        (
            "visible &= cols[None, :] <= offs_m",
            "visible &= (cols[None, :] <= offs_m) | (start_n + BLOCK_N < end_n)",
        ),
    ],
}
