"""A factor of K that was expanded from one number is read as if there were one for each head.

Kind            Q
What is wrong   the strides are computed from the shape [B, Hkv]: what lies behind the number
                is read for all heads but the first. Reads beyond the tensor give 0, as
                bounds-checked loads do
Where seen      no public report at hand; sgl-project/sglang#26211 expands one number to [B, H], as
                vLLM does
Killed by       agreement, strides
Survives        factors that were allotted for each head; one batch element of one head
"""

FULL = """
if k_descale is not None and 0 in k_descale.stride():
    once = k_descale[tuple(slice(None) if step else slice(1) for step in k_descale.stride())]
    full = k_descale.new_zeros(k_descale.numel())
    full[: once.numel()] = once.flatten()
    k_descale = full.view(k_descale.shape)
"""

edits = {
    "fp32_float8": [("len_k = key.shape[2]", FULL + "len_k = key.shape[2]")],
    "triton_float8": [
        ("len_k, head_dim_v = value.shape[2:]", FULL + "len_k, head_dim_v = value.shape[2:]")
    ],
}
