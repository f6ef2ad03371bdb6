"""The reference is the block's own maximum, which may fall.

Kind            B
What is wrong   exact in real numbers, since alpha makes up for it; a block that lies 88 lower
                makes alpha inf, and one that is hidden loses the maximum, so that the next
                alpha is 0 and all before is forgotten
Where seen      derivations of online softmax: the running maximum must not decrease, or exp
                overflows
Killed by       agreement, finite, key_permutation, neutral_options
Survives        scores within 80 or so of each other without hidden blocks; fixed-shape tests
                on randn have no others
"""

edits = {
    "numpy_online": [
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            "m_new = s.max(axis=-1, keepdims=True)",
        ),
    ],
    "fp32_stats": [
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            "m_new = s.amax(dim=-1, keepdim=True)",
        ),
    ],
    "triton_flash": [("m_new = tl.maximum(m_i, tl.max(qk, 1))", "m_new = tl.max(qk, 1)")],
}
