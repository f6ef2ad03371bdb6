"""The running normalizer is stored in the input dtype after each block.

Kind            C
What is wrong   l is rounded to float16 or bfloat16 at every block: once it has grown, what a
                block adds is lost in part or in all
Where seen      sonos/tract#2586, huggingface/candle#3727, pytorch/executorch#20089 and
                tenstorrent/tt-metal#52045 summed the exponentials of a row in half precision;
                ggml-org/llama.cpp#24389 kept l in float16 between blocks
Killed by       agreement
Survives        float32 and float64, where nothing is rounded; one block: a single rounding of l
"""

edits = {
    "numpy_online": [
        (
            "l_i = l_i * alpha + p.sum(axis=-1, keepdims=True)",
            "l_i = to_array(to_tensor(l_i * alpha + p.sum(axis=-1, keepdims=True), query))",
        ),
    ],
    "fp32_stats": [
        (
            "l_i = l_i * alpha + p.sum(dim=-1, keepdim=True)",
            "l_i = (l_i * alpha + p.sum(dim=-1, keepdim=True)).to(dtype).to(stats)",
        ),
    ],
    "triton_flash": [
        (
            "l_i = l_i * alpha + tl.sum(p, 1)",
            "l_i = (l_i * alpha + tl.sum(p, 1)).to(q.dtype).to(tl.float32)",
        ),
    ],
}
