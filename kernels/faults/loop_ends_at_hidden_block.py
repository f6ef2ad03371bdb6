"""The loop over keys ends at the first block that is wholly hidden, instead of skipping it.

Kind            A
What is wrong   break where continue is meant: sound for a causal mask, where all that follows
                is hidden too, wrong for any other
Where seen      no public issue names it; derivations of online softmax skip hidden blocks as
                an optimization for causal masks. Not in triton_flash: Triton's loops have no
                break
Killed by       agreement, key_doubling
Survives        causal masks, and masks that hide no whole block of keys or only the last ones
"""

edits = {
    "numpy_online": [
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            """
if (s == -np.inf).all():
    break
m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))
""",
        ),
    ],
    "fp32_stats": [
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            """
if bool((s == -math.inf).all()):
    break
m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))
""",
        ),
    ],
}
