"""An output that was written as [B, L, H, Dv] is returned as [B, H, L, Dv] by a view.

Kind            N
What is wrong   reshape stands where transpose has to: the elements are right and are other
                rows of other heads
Where seen      the class of pytorch/pytorch#181133 and #163597 (permuted axes), at the
                output
Killed by       agreement
Survives        one head or one query; shapes, which agree
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            """
out = acc / np.where(l_i == 0, 1, l_i)
out = out.swapaxes(1, 2).reshape(out.shape)
""",
        )
    ],
    "fp32_stats": [("return out, lse", "return out.transpose(1, 2).reshape(out.shape), lse")],
    "triton_flash": [("return out, lse", "return out.transpose(1, 2).reshape(out.shape), lse")],
}
