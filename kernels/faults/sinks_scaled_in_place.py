"""The sinks are multiplied with log2(e) in the caller's memory.

Kind            G
What is wrong   sinks *= log2(e), for scores in base 2: this call is right, and the next one,
                of the next token, finds other sinks
Where seen      no public report at hand; the sinks are a parameter, which the layer has for good
Killed by       inputs_unmodified, repeat
Survives        sinks of 0; every test that makes its sinks for each call. PyTorch refuses to
                write to expanded ones
"""

edits = {
    "numpy_online": [
        (
            "sink = np.broadcast_to(to_array(sinks).astype(q.dtype)[:, None, None], m_i.shape)",
            """
logits = to_array(sinks)
logits *= math.log2(math.e)
sink = np.broadcast_to(logits.astype(q.dtype)[:, None, None] * math.log(2), m_i.shape)
""",
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            """
sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale
if sinks is not None:
    sinks.mul_(math.log2(math.e))
""",
        ),
        (
            "m_i = sinks.to(stats)[:, None, None].expand_as(m_i)",
            "m_i = (sinks.to(stats) * math.log(2))[:, None, None].expand_as(m_i)",
        ),
    ],
    "triton_flash": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            """
sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
if sinks is not None:
    sinks.mul_(math.log2(math.e))
""",
        ),
        (
            "m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_h)",
            "m_i = tl.zeros_like(m_i) + tl.load(Sinks + off_h) * 0.6931471805599453",
        ),
    ],
    "triton_decode": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)",
            """
sm_scale = 1 / math.sqrt(head_dim) if scale is None else float(scale)
if sinks is not None:
    sinks.mul_(math.log2(math.e))
""",
        ),
        (
            "m_i = tl.load(Sinks + offs_m // len_q % H, mask=rows, other=0.0)",
            "m_i = tl.load(Sinks + offs_m // len_q % H, mask=rows, other=0.0) * 0.6931471805599453",
        ),
    ],
}
