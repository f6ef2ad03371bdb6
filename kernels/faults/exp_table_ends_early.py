"""exp never falls below exp(-8): a score far below the maximum keeps that weight.

Kind            C
What is wrong   the argument is clamped to the range of a table, so that many keys without
                weight weigh something together; hidden keys are left out before
Where seen      tenstorrent/tt-metal#56430 clamps the argument of exp as well, at -88.5, and
                ooples/AiDotNet.Tensors#126 at the ends of its table
Killed by       agreement
Survives        scores within 8 of the maximum, as randn gives; few keys in half precision: one
                weighs 3e-4
"""

edits = {
    "numpy_online": [
        (
            "p = np.exp(s - m_ref)",
            "p = np.where(s == -np.inf, 0, np.exp(np.maximum(s - m_ref, -8)))",
        ),
    ],
    "fp32_stats": [
        (
            "p = torch.exp(s - m_ref)",
            "p = torch.exp((s - m_ref).clamp(min=-8)).masked_fill(s == -math.inf, 0.0)",
        ),
    ],
    "triton_flash": [
        (
            "p = tl.exp(qk - m_ref[:, None])",
            (
                'p = tl.where(qk == float("-inf"), 0.0, tl.exp(tl.maximum(qk - m_ref[:,'
                " None], -8.0)))"
            ),
        ),
    ],
}
