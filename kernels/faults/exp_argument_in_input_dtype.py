"""The argument of exp is rounded to the input dtype.

Kind            C
What is wrong   s - m is rounded before a half-precision exp: weights are off by u (m - s), most
                where scores lie far apart
Where seen      ml frameworks whose softmax runs in the tensor's dtype, huggingface/candle#3727
                for one; hexp2 on packed halves as a faster exp
Killed by       agreement
Survives        float32 and float64; scores within about 1 of the maximum; bfloat16 with few
                keys in the tail
"""

edits = {
    "numpy_online": [
        ("p = np.exp(s - m_ref)", "p = np.exp(to_array(to_tensor(s - m_ref, query)))"),
    ],
    "fp32_stats": [
        ("p = torch.exp(s - m_ref)", "p = torch.exp((s - m_ref).to(dtype).to(stats))"),
    ],
    "triton_flash": [
        (
            "p = tl.exp(qk - m_ref[:, None])",
            "p = tl.exp((qk - m_ref[:, None]).to(q.dtype).to(tl.float32))",
        ),
    ],
    "numpy_naive": [
        (
            "p = np.exp(s - np.where(m == -np.inf, 0, m))",
            "p = np.exp(to_array(to_tensor(s - np.where(m == -np.inf, 0, m), query)))",
        ),
    ],
}
