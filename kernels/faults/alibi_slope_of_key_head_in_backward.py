"""The backward takes the ALiBi slope of the key head.

Kind            P
What is wrong   slopes are indexed by h // group, the head that dK and dV are summed for, where the
                query head h belongs
Where seen      no public issue names it for a backward; alibi_slope_of_key_head is its counterpart
                in the forward pass
Killed by       gradients, value_gradient_sum
Survives        as many key heads as query heads; slopes that are equal
"""

edits = {
    "fp32_backward": [
        (
            'attn_mask, alibi_slopes = options["attn_mask"], options["alibi_slopes"]',
            """
attn_mask, alibi_slopes = options["attn_mask"], options["alibi_slopes"]
if alibi_slopes is not None:
    alibi_slopes = alibi_slopes[:kv_heads].repeat_interleave(heads // kv_heads)
""",
        ),
    ],
    "triton_backward": [
        (
            "slopes = None if slopes is None else slopes.contiguous()",
            """
if slopes is not None:
    slopes = slopes[:kv_heads].repeat_interleave(heads // kv_heads)
""",
        ),
    ],
}
