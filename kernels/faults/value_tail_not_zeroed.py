"""The rows of V after the last key are not zeroed, since their weights are 0.

Kind            H
What is wrong   the tail of a tile of V holds whatever the memory held, and 0 times NaN is
                NaN. Here it is the tile's own memory, and in Triton what follows the head,
                as far as a guard zone reaches
Where seen      Dao-AILab/flash-attention#1745 and #2374, vllm-project/vllm#936 and #53856,
                ROCm/aiter#5401 (0 times NaN from rows of V that are not in use);
                thu-ml/SageAttention#376
Killed by       agreement, constant_v, poison_memory, poison_output, batch_independence
Survives        memory that happens to be finite, as nearly all memory of a test is; Lk a
                multiple of the block
"""

edits = {
    "numpy_online": [
        (
            "acc = acc * alpha + p @ v[:, :, start_n:end_n]",
            """
tile = torch.from_numpy(v).new_empty(*v.shape[:2], BLOCK_N, v.shape[3]).numpy()
tile[:, :, : end_n - start_n] = v[:, :, start_n:end_n]
weights = np.pad(p, ((0, 0), (0, 0), (0, 0), (0, start_n + BLOCK_N - end_n)))
acc = acc * alpha + weights @ tile
""",
        )
    ],
    "fp32_stats": [
        (
            "acc = acc * alpha + p.to(dtype).to(stats) @ v",
            """
tile = v.new_empty(*v.shape[:2], BLOCK_N, v.shape[3])
tile[:, :, : cols.stop - start_n] = v
weights = torch.nn.functional.pad(p, (0, start_n + BLOCK_N - cols.stop))
acc = acc * alpha + weights.to(dtype).to(stats) @ tile
""",
        )
    ],
    "triton_flash": [
        (
            "v = tl.load(v_ptrs, mask=(cols < len_k)[:, None] & (offs_dv < head_dim_v), other=0.0)",
            """
beyond = (cols - len_k)[:, None] * stride_vn + offs_dv * stride_vd
beyond = tl.where(stride_vh >= stride_vn, beyond, 32)  # no heads in between
loaded = (cols < len_k)[:, None] | (beyond < 32)
v = tl.load(v_ptrs, mask=loaded & (offs_dv < head_dim_v), other=0.0)
""",
        )
    ],
}
