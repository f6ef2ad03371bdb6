"""The offset of a key head wraps around.

Kind            M
What is wrong   batch and head times stride is computed in a narrow integer, 11 bits here for
                32: later heads read keys that begin elsewhere
Where seen      Dao-AILab/flash-attention#2260, #1500 and #772,
                fla-org/flash-linear-attention#1080, NVIDIA/FasterTransformer#524,
                thu-ml/SageAttention#386, vllm-project/vllm#50427: 32-bit offsets of large
                batches, caches and views
Killed by       agreement, gqa_repeated_heads
Survives        tensors of up to 2^11 elements (2^31 in public)
"""

edits = {
    "numpy_online": [
        (
            "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)",
            (
                "sm_scale = q.dtype.type(1 / math.sqrt(q.shape[-1]) if scale is None else scale)\n"
                "at = np.arange(k.shape[0] * k.shape[1])[:, None] * k.shape[2] * k.shape[3] %"
                " 2048\n"
                "k = k.reshape(-1)[at + np.arange(k.shape[2] * k.shape[3])].reshape(k.shape)"
            ),
        ),
    ],
    "fp32_stats": [
        (
            "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale",
            (
                "sm_scale = 1 / math.sqrt(head_dim) if scale is None else scale\n"
                "at = torch.arange(key.shape[0] * key.shape[1], device=device)[:, None]\n"
                "at = at * len_k * head_dim % 2048 + torch.arange(len_k * head_dim,"
                " device=device)\n"
                "key = key.reshape(-1)[at].reshape(key.shape)"
            ),
        ),
    ],
    "triton_flash": [
        (
            "k_ptrs = K + off_z * stride_kz + off_hkv * stride_kh",
            "k_ptrs = K + (off_z * stride_kz + off_hkv * stride_kh) % 2048",
        ),
    ],
}
