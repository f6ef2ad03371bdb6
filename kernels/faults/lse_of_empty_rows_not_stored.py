"""lse is not stored in rows that see no key.

Kind            D
What is wrong   the store is skipped together with the logarithm of 0: lse is what torch.empty
                found in memory
Where seen      flashinfer-ai/flashinfer#440, #363 and #353: out and lse of requests without
                keys differ between kernels, or are left unset
Killed by       agreement, key_doubling, poison_output, key_permutation
Survives        rows that see a key; memory that happens to hold -inf from the call before
"""

edits = {
    "numpy_online": [
        (
            "lse = (m_i + np.log(l_i))[..., 0]",
            (
                "lse = np.where(l_i == 0, torch.empty(l_i.shape).numpy(), m_i + "
                "np.log(l_i))[..., 0].astype(q.dtype)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "lse[:, :, rows] = (m_i + torch.log(l_i)).squeeze(-1)",
            (
                "lse[:, :, rows] = torch.where(l_i == 0, lse[:, :, rows, None], m_i + "
                "torch.log(l_i)).squeeze(-1)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "tl.store(Lse + offs_out, lse, mask=rows)",
            'tl.store(Lse + offs_out, lse, mask=rows & (lse != float("-inf")))',
        ),
    ],
}
