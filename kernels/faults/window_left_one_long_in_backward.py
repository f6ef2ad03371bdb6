"""The backward's window reaches one key further to the left than the forward's.

Kind            P
What is wrong   one pass takes left for keys besides the query's own, the other for a count: the key
                before the window gets a weight and gradients
Where seen      no public issue names it for a backward; huggingface/transformers#39408 and
                zml/zml#763 mix the two in the forward pass, and ROCm/aiter#3742 notes that the
                masks of both passes must match exactly
Killed by       gradients, value_gradient_sum
Survives        windows without a left end, or as wide as the sequence; a key of little weight
                before the edge
"""

edits = {
    "fp32_backward": [
        (
            'left, right = options["window_size"]',
            """
left, right = options["window_size"]
left += left >= 0
""",
        ),
    ],
    "triton_backward": [
        (
            "left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)",
            """
left, right = (None if w < 0 else min(w, len_q + len_k) for w in window_size)
left = None if left is None else left + 1
""",
        ),
    ],
}
