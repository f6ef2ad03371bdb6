"""The running maximum is stored in the input dtype between blocks.

Kind            C
What is wrong   l and acc refer to the maximum as it was computed, the next block's alpha and
                the lse to the rounded one
Where seen      ggml-org/llama.cpp#24389 kept the row maximum and the normalizer in float16
                between the blocks of its prefill kernel
Killed by       agreement
Survives        float32 and float64, where nothing is rounded; one block, but for the lse;
                maxima of few bits
"""

edits = {
    "numpy_online": [
        ("m_i = m_new", "m_i = to_array(to_tensor(m_new, query))"),
    ],
    "fp32_stats": [
        ("m_i = m_new", "m_i = m_new.to(dtype).to(stats)"),
    ],
    "triton_flash": [
        ("m_i = m_new", "m_i = m_new.to(q.dtype).to(tl.float32)"),
    ],
}
