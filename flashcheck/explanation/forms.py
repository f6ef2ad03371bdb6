"""Forms: correct kernels that are laid out otherwise, and in which a fault shows otherwise.

The same bug gives other numbers where P is not rounded, where blocks that the causal mask hides
are visited, and where the last tile is padded: each element is right within its bound before
the fault, and not after it. A form rewrites the source of kernels/fp32_stats, whatever fault was
injected in it, as `ast.unparse` prints it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

Rewrite = Callable[[str], str | None]
"""Source to source; None where the fault has changed what the form would change."""

LAST = "min(len_k, rows.stop"
"""Where the loop over keys ends under a causal mask."""


def rows(text: str) -> str:
    """Whole rows, as in NumPy: P as wide as the statistics, every block visited."""
    text = re.sub(r"\b(p(?:\[[^]]*\])?)\.to\(dtype\)\.to\(stats\)", r"\1", text)
    # A fault may add Lk - Lq to the end.
    return text.replace(LAST, "min(len_k, len_k + len_q")


def padded(text: str) -> str | None:
    """Whole tiles, as on a GPU: keys are padded by zeros and hidden like any other, and lse has
    the normalizer that out is divided by."""
    text = text.replace("torch.log(l_i)", "torch.log(l_i.masked_fill(l_i == 0, 1.0))")
    text = text.replace(LAST, "min(len_k, start_m + BLOCK_M")
    text = text.replace("\nimport torch\n", "\nimport torch\nfrom torch.nn.functional import pad\n")
    hidden = re.findall(r"\n +s = s\.masked_fill\([^,]*\bj\b[^,]*, (.*)\)\n", text)
    # A split ends at `last`.
    tile = r"min\(start_n \+ BLOCK_N, (\w+)\)"
    ends = re.findall(tile, text)
    start, block, rest = re.sub(tile, "start_n + BLOCK_N", text).partition(
        "\n    out = torch.empty("
    )
    if len(hidden) != 1 or len(ends) != 1 or not block:
        return None
    start += (
        "\n    key, value = pad(key, (0, 0, 0, BLOCK_N)), pad(value, (0, 0, 0, BLOCK_N))"
        "\n    attn_mask = None if attn_mask is None else pad(attn_mask, (0, BLOCK_N))"
    )
    rest, places = re.subn(
        r"\n( +)(m_new = )",
        rf"\n\1s = s.masked_fill(torch.arange(cols.start, cols.stop) >= {ends[0]}, {hidden[0]})"
        r"\n\1\2",
        rest,
        count=1,
    )
    return start + block + rest if places else None


FORMS: Mapping[str, Rewrite] = {"tiles": str, "rows": rows, "padded": padded}
"""By name; "tiles" is the kernel as it is."""
