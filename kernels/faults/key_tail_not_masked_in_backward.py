"""The backward does not hide keys beyond the last one.

Kind            P
What is wrong   padded keys have the score 0 and the weight exp(-lse), which overflows where the
                scores are low, and then 0 times infinity is added to dQ
Where seen      Dao-AILab/flash-attention#334, #443, #1052 (NaN in dQ for magnified inputs and
                ragged lengths)
Killed by       gradients
Survives        Lk that is a multiple of the block; scores that are not low
"""

edits = {
    "triton_backward": [
        (
            "visible = (offs_m < len_q)[:, None] & (offs_n < len_k)[None, :]",
            "visible = (offs_m < len_q)[:, None] & (offs_n >= 0)[None, :]",
        )
    ],
}
