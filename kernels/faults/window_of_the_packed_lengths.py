"""Windows and ALiBi are aligned at the ends of the packed batch.

Kind            J
What is wrong   the shift Lk - Lq is that of all sequences together, not of the
                query's own
Where seen      the class of ikawrakow/ik_llama.cpp#2186: one sequence is assumed
                where several share a tensor
Killed by       agreement
Survives        as many queries as keys; no window and no ALiBi
"""

edits = {
    "numpy_online": [
        (
            "for begin_q, end_q, begin_k, end_k in zip(*ends, strict=True): ...",
            """
packed.shift = int(cu_k[-1] - cu_q[-1])
for begin_q, end_q, begin_k, end_k in zip(*ends, strict=True): ...
packed.shift = None
""",
        ),
        (
            "shift = len_k - len_q",
            """
shift = getattr(packed, 'shift', None)
shift = len_k - len_q if shift is None else shift
""",
        ),
    ],
    "fp32_stats": [
        (
            "for begin_q, end_q, begin_k, end_k in zip(*ends, strict=True): ...",
            """
packed.shift = int(cu_k[-1] - cu_q[-1])
for begin_q, end_q, begin_k, end_k in zip(*ends, strict=True): ...
packed.shift = None
""",
        ),
        (
            "shift = len_k - len_q",
            """
shift = getattr(packed, 'shift', None)
shift = len_k - len_q if shift is None else shift
""",
        ),
    ],
}
