"""The output of a row that sees no key is not written.

Kind            H
What is wrong   the epilogue skips rows whose maximum is still -inf, as a kernel does that
                has no block to visit for them: they hold what torch.empty gives, and lse is
                right
Where seen      Dao-AILab/flash-attention#1778 (rows above the diagonal),
                flashinfer-ai/flashinfer#1533; flashinfer-ai/flashinfer#3047 and
                sgl-project/sglang#22688 (no keys left in a chunk)
Killed by       agreement, head_independence, poison_memory, poison_output
Survives        masks that leave every row a key; memory that happens to be 0, as fresh
                memory is
"""

edits = {
    "numpy_online": [
        (
            "out = acc / np.where(l_i == 0, 1, l_i)",
            """
out = torch.from_numpy(acc).new_empty(acc.shape).numpy()
np.divide(acc, l_i, out=out, where=m_i > -np.inf)
""",
        )
    ],
    "fp32_stats": [
        (
            "out[:, :, rows] = (acc / l_i.masked_fill(l_i == 0, 1.0)).to(dtype)",
            """
o = (acc / l_i).to(dtype)
out[:, :, rows] = torch.where(m_i > -math.inf, o, out[:, :, rows])
""",
        )
    ],
    "triton_flash": [
        (
            """
tl.store(
    Out + offs_out * head_dim_v + offs_dv, out, mask=rows & (offs_dv < head_dim_v)
)
""",
            """
stored = rows & (m_i > float("-inf"))[:, None] & (offs_dv < head_dim_v)
tl.store(Out + offs_out * head_dim_v + offs_dv, out, mask=stored)
""",
        )
    ],
}
