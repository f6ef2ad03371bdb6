"""The running maximum is clamped at -1e4, so that it is never -inf.

Kind            A
What is wrong   a guard against (-inf) - (-inf) that also holds for rows that see keys: where
                all scores are below -1e4 every weight underflows, and the row is taken for
                empty
Where seen      tracel-ai/burn#4694, the fix of a NaN
Killed by       agreement
Survives        any row with a score above -1e4
"""

edits = {
    "numpy_online": [
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            "m_new = np.maximum(np.maximum(m_i, s.max(axis=-1, keepdims=True)), -1e4)",
        ),
    ],
    "fp32_stats": [
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True)).clamp(min=-1e4)",
        ),
    ],
    "triton_flash": [
        (
            "m_new = tl.maximum(m_i, tl.max(qk, 1))",
            "m_new = tl.maximum(tl.maximum(m_i, tl.max(qk, 1)), -10000.0)",
        ),
    ],
    "numpy_naive": [
        (
            "m = s.max(axis=-1, keepdims=True, initial=-np.inf)",
            "m = s.max(axis=-1, keepdims=True, initial=-1e4)",
        ),
    ],
}
