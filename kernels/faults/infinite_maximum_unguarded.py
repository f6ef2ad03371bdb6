"""A maximum of -inf is subtracted as it is: (-inf) - (-inf) is NaN.

Kind            A
What is wrong   m_new is -inf as long as a row has seen no key, and s - m_new, m_i - m_new are
                NaN then; once NaN, l and acc stay NaN whatever follows
Where seen      pytorch/pytorch#103963 and #127055, ggml-org/llama.cpp#12776,
                iree-org/iree#24175, flashinfer-ai/flashinfer#1178, tracel-ai/burn#4694: no
                safe softmax, or a first block that a mask or a window hides
Killed by       agreement, query_independence, strides
Survives        no mask, and masks that leave every row a key in the block that comes first:
                top-left causal masks among them, which are what fixed shapes test
"""

edits = {
    "numpy_online": [("m_ref = np.where(m_new == -np.inf, 0, m_new)", "m_ref = m_new")],
    "fp32_stats": [("m_ref = m_new.masked_fill(m_new == -math.inf, 0.0)", "m_ref = m_new")],
    "triton_flash": [('m_ref = tl.where(m_new == float("-inf"), 0.0, m_new)', "m_ref = m_new")],
    "numpy_naive": [("p = np.exp(s - np.where(m == -np.inf, 0, m))", "p = np.exp(s - m)")],
}
