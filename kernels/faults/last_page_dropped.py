"""A last page that is not full is not read.

Kind            K
What is wrong   the number of pages is the length divided by their size, rounded
                down
Where seen      the class of vllm-project/vllm#42494
Killed by       agreement, sequence_independence
Survives        lengths that are multiples of the page
"""

edits = {
    "numpy_online": [
        (
            "j = torch.arange(len_k, device=key.device)",
            """
len_k = len_k // size * size
j = torch.arange(len_k, device=key.device)
""",
        ),
    ],
    "fp32_stats": [
        (
            "pages = table[b, : -(-len_k // size)].long()",
            "pages = table[b, : len_k // size].long()",
        ),
    ],
}
