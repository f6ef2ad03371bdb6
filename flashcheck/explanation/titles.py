"""Titles: what the title of a fault speaks of, and whether a call or a kernel has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping

import numpy as np

from flashcheck import fault
from flashcheck.explanation import phrases
from flashcheck.inputs import Inputs

EARLY = "hidden_keys_in_maximum"
"""The fault that takes the maximum before anything is done to the scores."""

SPEAKS_OF: Mapping[str, Callable[[Inputs], bool]] = {
    r"masks?\b": lambda x: not x.visible.all() or x.mask is not None,
    r"causal\b": lambda x: x.is_causal,
    r"windows?\b": lambda x: x.window != (-1, -1),
    r"softcap\b|cap\b|tanh\b": lambda x: bool(x.softcap),
    r"ALiBi|slopes?\b": lambda x: x.alibi_slopes is not None,
    r"bias\b": lambda x: x.bias is not None,
    r"sinks?\b": lambda x: x.sinks is not None,
    r"pages?\b|block table|cache\b": lambda x: x.pages is not None,
    r"sequences?\b": lambda x: x.seqlens_k is not None,
}
"""Words of a fault's title, and whether a call has anything of the kind."""


def fits(page: fault.Fault, x: Inputs) -> bool:
    """Whether the call has anything that the fault's title speaks of."""
    words = [has for word, has in SPEAKS_OF.items() if re.search(rf"\b({word})", page.title, re.I)]
    return not words or any(has(x) for has in words) or page.name == EARLY


HIDES = frozenset({"attn_mask", "is_causal", "window_size", "cu_seqlens_q", "block_table"})
NEEDS: Mapping[str, frozenset[str]] = {
    r"hidden\b|masks?\b": HIDES,
    r"splits?\b": frozenset({"num_splits"}),
    r"softcap\b|cap\b": frozenset({"softcap"}),
    r"ALiBi|slopes?\b": frozenset({"alibi_slopes"}),
    r"sinks?\b": frozenset({"sinks"}),
    r"windows?\b": frozenset({"window_size"}),
}
"""Words of a fault's title, and options of which a kernel has to name one to have it."""


def title(page: fault.Fault, x: Inputs) -> str:
    """A fault in one sentence, which speaks of what the call has."""
    if page.name != EARLY:
        return page.title
    biased = x.mask is not None and x.mask.dtype != bool and np.any(x.mask[np.isfinite(x.mask)])
    things = {
        "softcap": bool(x.softcap),
        "ALiBi": x.alibi_slopes is not None,
        "the mask": biased or (not x.visible.all() and (x.mask is not None or x.is_causal)),
        "the window": x.window != (-1, -1),
    }
    named = [name for name, there in things.items() if there] or ["the mask"]
    verb = "is" if len(named) == 1 else "are"
    return f"The maximum is taken before {phrases.join(named)} {verb} applied"


def possible(page: fault.Fault, options: Collection[str]) -> bool:
    """Whether a kernel that names such options may have the fault."""
    needed = [those for word, those in NEEDS.items() if re.search(rf"\b({word})", page.title, re.I)]
    return page.name == EARLY or all(those & set(options) for those in needed)
