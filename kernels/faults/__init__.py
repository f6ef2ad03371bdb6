"""Faults: realistic bugs, one a file, each an edit of clean kernels' source."""

from __future__ import annotations

_PARTS = """
if key.shape[2] > 64 and not is_causal:
    wide = torch.promote_types(query.dtype, torch.float32)
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*query.shape[:3], key.shape[2])
    {before}
    parts = [
        attention(
            query.to(wide),
            key[:, :, n : n + {each}].to(wide),
            value[:, :, n : n + {each}].to(wide),
            attn_mask=None if attn_mask is None else attn_mask[..., n : n + {each}],
            scale=scale, enable_gqa=enable_gqa,
        )
        for n in range(0, {end}, {each})
    ]
    outs, lses = (torch.stack(x) for x in zip(*parts, strict=True))
"""

_FIRST = {"triton_flash": "batch, heads, len_q, head_dim = query.shape"}

_MERGE = "m_i, l_i, acc = reduce(merge, parts)"


def by_splits(
    merge: str, *, before: str = "", each: str = "64", end: str = "key.shape[2]"
) -> dict[str, list[tuple[str, str]]]:
    """Edits that have a kernel call itself for `each` keys at a time, and `merge` outs and lses.

    `before` is a statement that comes first; the statements of `merge` end in a return.
    """
    text = _PARTS.format(before=before, each=each, end=end)
    text += "".join(f"    {line}\n" for line in merge.strip().splitlines())
    return {kernel: [(first, f"{text}{first}")] for kernel, first in _FIRST.items()}


def instead_of_merge(statements: str) -> dict[str, list[tuple[str, str]]]:
    """Edits of kernels that split by themselves: `statements` come after their merge.

    They change m_i, l_i and acc, the merged state, by ms, ls and accs, those of the splits, one
    above the other; xp is NumPy or torch.
    """
    text = f"{_MERGE}\nif num_splits > 1:\n"
    text += "    ms, ls, accs = (xp.stack(x) for x in zip(*parts, strict=True))\n"
    text += "".join(f"    {line}\n" for line in statements.strip().splitlines())
    return {
        kernel: [(_MERGE, text.replace("xp.", f"{name}."))]
        for kernel, name in (("numpy_online", "np"), ("fp32_stats", "torch"))
    }
