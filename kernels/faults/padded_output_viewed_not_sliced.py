"""An output with rows padded to 8 columns is viewed with the shape asked for, not sliced.

Kind            H
What is wrong   the kernel writes rows of a multiple of 8 columns; the first B Hq Lq Dv
                elements of that buffer are returned, so that every row after the first is
                shifted
Where seen      66RING/tiny-flash-attention#12 (no predicate over D where the output is
                copied out)
Killed by       agreement
Survives        Dv a multiple of 8; one row in all
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            """
out = acc / np.where(l_i == 0, 1, l_i)
padded = np.pad(out, ((0, 0), (0, 0), (0, 0), (0, -out.shape[-1] % 8)))
out = padded.reshape(-1)[: out.size].reshape(out.shape)
""",
        )
    ],
    "fp32_stats": [
        (
            "return out, lse",
            """
padded = torch.nn.functional.pad(out, (0, -out.shape[3] % 8))
return padded.view(-1)[: out.numel()].view(out.shape), lse
""",
        )
    ],
    "triton_flash": [
        (
            "return out, lse",
            """
padded = torch.nn.functional.pad(out, (0, -out.shape[3] % 8))
return padded.view(-1)[: out.numel()].view(out.shape), lse
""",
        )
    ],
}
