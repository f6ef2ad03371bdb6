"""The last page is read to its end.

Kind            K
What is wrong   the length of a sequence is rounded up to whole pages, and what the
                rest of the last one holds is seen
Where seen      vllm-project/vllm#42494: a partial last page;
                meta-pytorch/gpt-fast#233: empty slots that are zero are attended
Killed by       agreement, sequence_independence
Survives        lengths that are multiples of the page; V all ones
"""

edits = {
    "numpy_online": [
        (
            "j = torch.arange(len_k, device=key.device)",
            """
len_k = -(-len_k // size) * size
j = torch.arange(len_k, device=key.device)
""",
        ),
    ],
    "fp32_stats": [
        (
            "k, v = (pool[pages].flatten(0, 1)[:len_k] for pool in (key, value))",
            "k, v = (pool[pages].flatten(0, 1) for pool in (key, value))",
        ),
    ],
    "triton_decode": [
        (
            "len_k = tl.load(Lengths + off_z)",
            "len_k = tl.cdiv(tl.load(Lengths + off_z), page_size) * page_size",
        ),
    ],
}
