"""Blocks of keys that no query sees are left unwritten in dK and dV.

Kind            P
What is wrong   a program whose loop over queries is empty returns before it stores zeros
Where seen      Dao-AILab/flash-attention#2568 (zero trips, dKV zero-write)
Killed by       poison_gradients, gradients
Survives        Lk <= Lq, and no causal mask; memory that happens to hold zeros
"""

edits = {
    "triton_backward": [
        (
            "first_m = start_n // BLOCK_M * BLOCK_M",
            "first_m = start_n // BLOCK_M * BLOCK_M\nif first_m >= len_q:\n    return",
        )
    ],
}
