"""The rows of K after the last key are not cleared, and -inf is added to their scores.

Kind            H
What is wrong   the tail of a tile of K holds whatever the memory held, and NaN plus -inf is
                NaN, where a select would have hidden it. In Triton the memory is what
                follows the head, as far as a guard zone reaches
Where seen      Dao-AILab/flash-attention#1395 (only V was cleared),
                deepbeepmeep/Wan2GP#1628 (a cache from torch.empty and an additive mask);
                thu-ml/SageAttention#376
Killed by       agreement, poison_memory, constant_v
Survives        memory that happens to be finite; Lk a multiple of the block
"""

edits = {
    "numpy_online": [
        (
            "s = (q @ k[:, :, start_n:end_n].swapaxes(-1, -2)) * sm_scale",
            """
tile = torch.from_numpy(k).new_empty(*k.shape[:2], BLOCK_N, k.shape[3]).numpy()
tile[:, :, : end_n - start_n] = k[:, :, start_n:end_n]
padded = (q @ tile.swapaxes(-1, -2)) * sm_scale
padded += np.where(np.arange(start_n, start_n + BLOCK_N) < len_k, 0, -np.inf).astype(q.dtype)
s = padded[..., : end_n - start_n]
""",
        ),
        (
            "m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))",
            """
s = np.concatenate([s, padded[..., end_n - start_n :]], axis=-1)
m_new = np.maximum(m_i, s.max(axis=-1, keepdims=True))
""",
        ),
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            "acc = acc * alpha + p[..., : end_n - start_n] @ v[:, :, start_n:end_n]",
        ),
    ],
    "fp32_stats": [
        (
            "s = (q @ k.transpose(-1, -2)) * sm_scale",
            """
tile = k.new_empty(*k.shape[:2], BLOCK_N, k.shape[3])
tile[:, :, : cols.stop - start_n] = k
padded = (q @ tile.transpose(-1, -2)) * sm_scale
padded[..., cols.stop - start_n :] += -math.inf
s = padded[..., : cols.stop - start_n]
""",
        ),
        (
            "m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))",
            """
s = torch.cat([s, padded[..., cols.stop - start_n :]], -1)
m_new = torch.maximum(m_i, s.amax(dim=-1, keepdim=True))
""",
        ),
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            "acc = acc * alpha + p[..., : cols.stop - start_n].to(dtype).to(stats) @ v",
        ),
    ],
    "triton_flash": [
        (
            "k = tl.load(k_ptrs, mask=(cols < len_k)[:, None] & (offs_d < head_dim), other=0.0)",
            """
beyond = (cols - len_k)[:, None] * stride_kn + offs_d * stride_kd
beyond = tl.where(stride_kh >= stride_kn, beyond, 32)  # no heads in between
loaded = (cols < len_k)[:, None] | (beyond < 32)
k = tl.load(k_ptrs, mask=loaded & (offs_d < head_dim), other=0.0)
""",
        ),
        (
            'qk = tl.where(visible, qk, float("-inf"))',
            'qk = qk + tl.where(visible, 0.0, float("-inf"))',
        ),
    ],
}
