"""The factors of k and v are not applied where q is float8.

Kind            Q
What is wrong   a path for float8 queries returns early, before the keys' and the values'
                factors are used: the softmax has the wrong temperature and the output the
                wrong size
Where seen      vllm-project/vllm#42580, vllm-project/vllm#51363, lightseekorg/tokenspeed#759
                (whose tests had factors of 1 alone)
Killed by       agreement
Survives        factors of 1
"""

edits = {
    "fp32_float8": [
        (
            (
                "of_k = by_block(ones if k_descale is None else k_descale, group, -(-len_k "
                "// DESCALE_N))"
            ),
            "of_k = by_block(ones, group, -(-len_k // DESCALE_N))",
        ),
        (
            (
                "of_v = by_block(ones if v_descale is None else v_descale, group, -(-len_k "
                "// DESCALE_N))"
            ),
            "of_v = by_block(ones, group, -(-len_k // DESCALE_N))",
        ),
    ],
    "triton_float8": [
        (
            "one = torch.ones(1, 1, dtype=fp32, device=device).expand(batch, key.shape[1])",
            """
one = torch.ones(1, 1, dtype=fp32, device=device).expand(batch, key.shape[1])
k_descale = v_descale = None
""",
        ),
    ],
}
