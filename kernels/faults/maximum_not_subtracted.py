"""exp is applied to the scores as they are.

Kind            B
What is wrong   a score above 88 overflows, a row of scores below -87 underflows as a whole;
                with P in float16 it is 11 and -17
Where seen      tenstorrent/tt-metal#12661, intel/xFasterTransformer#326, uTensor/uTensor#175,
                mila-iqia/blocks#727; derivations of online softmax stress that it is not
                optional
Killed by       agreement, query_independence, convexity, score_shift
Survives        scores of a few units, which randn inputs of any shape give
"""

edits = {
    "numpy_online": [
        ("m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))", "m_new = np.zeros_like(m_i)"),
    ],
    "fp32_stats": [
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            "m_new = torch.zeros_like(m_i)",
        ),
    ],
    "triton_flash": [
        ("m_new = tl.maximum(m_i, tl.max(qk, 1))", "m_new = tl.full([BLOCK_M], 0.0, tl.float32)"),
    ],
    "numpy_naive": [
        ("m = s.max(axis=-1, keepdims=True, initial=-np.inf)", "m = np.zeros_like(q[..., :1])"),
    ],
}
