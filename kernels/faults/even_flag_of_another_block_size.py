"""Whether keys fill their blocks is decided by the other block size.

Kind            O
What is wrong   EVEN_N is Lk % BLOCK_M == 0: with BLOCK_N the larger one, a tail that is no
                whole block of keys is dropped
Where seen      Dao-AILab/flash-attention commit bedcbd6a disabled all but the largest
                configuration; pytorch/pytorch#133717 set such a flag wrongly for decoding
Killed by       agreement, key_doubling
Survives        configurations whose BLOCK_N divides BLOCK_M, the usual default among them; a
                causal mask; lengths that are multiples of both or of neither. With blocks of
                128 a test must draw Lk = 64, 192, 320 and so on in just that configuration
"""

edits = {
    "numpy_online": [
        (
            "starts = range(first, last, BLOCK_N)",
            (
                "if len_k % 64 == 0:  # right for blocks of up to 64\n"
                "    last = min(last, len_k - len_k % BLOCK_N)\n"
                "starts = range(first, last, BLOCK_N)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "starts = range(first, min(end, last), BLOCK_N)",
            (
                "if not is_causal and len_k % BLOCK_M == 0:\n"
                "    last = min(last, len_k - len_k % BLOCK_N)\n"
                "starts = range(first, min(end, last), BLOCK_N)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "end_n = len_k",
            ("end_n = len_k\nif len_k % BLOCK_M == 0:\n    end_n = len_k - len_k % BLOCK_N"),
        ),
    ],
}
