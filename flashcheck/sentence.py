"""Sentence: a problem in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashcheck.fills import Fill
from flashcheck.inputs import DESCALES
from flashcheck.masks import Mask

if TYPE_CHECKING:
    from flashcheck.problem import Problem


def describe(p: Problem) -> str:
    """One sentence: shapes, options, then what q, k and v hold."""
    room = "room for " if p.page else ""
    shapes = [_count(p.len_q, "query", "queries"), room + _count(p.len_k, "key", "keys")]
    shapes.append(f"head size {p.dim}" + (f" (v {p.dim_v})" if p.dim_v != p.dim else ""))
    if p.batch > 1:
        shapes.append(f"batch {p.batch}")
    if p.enable_gqa:
        shapes.append(f"{p.heads} query heads on {_count(p.kv_heads, 'key head', 'key heads')}")
    elif p.heads > 1:
        shapes.append(f"{p.heads} heads")
    shapes.append(p.dtype)
    if p.is_causal:
        shapes.append("causal")
    shapes.append(_describe_mask(p.mask) if p.mask else "no mask")
    if p.scale is not None:
        shapes.append(f"scale {p.scale:g}")
    if p.window != (-1, -1):
        shapes.append(f"window {p.window}")
    if p.softcap:
        shapes.append(f"softcap {p.softcap:g}")
    for name, fill in (("ALiBi slopes", p.alibi_slopes), ("sinks", p.sinks)):
        if fill is not None:
            shapes.append(f"{name} {_held(p, fill, name)}")
    if p.num_splits != 1:
        shapes.append(f"{p.num_splits} splits")
    if p.packed:
        each = ", ".join(f"{q} on {k}" for q, k in zip(p.seqlens_q, p.seqlens_k, strict=True))
        shapes.append(f"a packed batch of sequences (queries on keys: {each})")
    for name in DESCALES:
        factor: Fill | None = getattr(p, name)
        if factor is not None:
            per = f"block of {p.descale_block}" if p.descale_per == "block" else p.descale_per
            shapes.append(f"{name} for each {per} {_held(p, factor, name)}")
    if p.page:
        *others, last = map(str, p.seqlens_k)
        lengths = f"{', '.join(others)} and {last}" if others else last
        held = "key" if p.seqlens_k == (1,) else "keys"
        shapes.append(f"pages of {p.page} holding {lengths} {held}")
        if p.shared:
            shapes.append(f"the first {_count(p.shared, 'page', 'pages')} shared")
    if p.layout != "contiguous":
        shapes.append(f"{p.layout.replace('_', ' ')} layout")
    parts = [f"{n} = {describe_fill(f, n)}" for n, f in (("q", p.q), ("k", p.k), ("v", p.v))]
    return ", ".join(shapes) + "; " + "; ".join(parts)


def _held(p: Problem, fill: Fill, tensor: str) -> str:
    """What an option's tensor holds; the outline of captured tensors does not say."""
    return "(captured)" if p.scores == "captured" else describe_fill(fill, tensor)


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def describe_fill(f: Fill, tensor: str) -> str:
    """What a fill makes of a tensor with the rows of `tensor`: q, k or v, or one of a head's."""
    place = {"q": "query", "k": "key", "v": "key"}.get(tensor, "head")
    at = (
        f"{place} {f.at}"
        if f.at >= 0
        else ("the last " + place if f.at == -1 else f"{place} {f.at}")
    )
    every = place if f.period == 1 else f"{f.period} {'queries' if tensor == 'q' else place + 's'}"
    stairs = ", ".join(f"{f.base + f.level * n:g}" for n in range(3))
    text = {
        "constant": f"{f.level:g} everywhere",
        "spike": f"{f.base:g} except {f.level:g} at {at}",
        "step": f"{f.base:g}, then {f.level:g} from {at} on",
        "stairs": f"{stairs}, ... a step every {every}",
        "cycle": f"{f.base:g} except {f.level:g} every {every} from 0",
        "alternate": f"{f.level:g} and {-f.level:g} in turn",
    }[f.pattern]
    if f.noise != "none":
        size = {
            "wide": f" over 2^+-{f.spread:g}",
            "special": f" (zeros, subnormals, 1 and {f.spread:g} of the largest number)",
        }.get(f.noise, f" x {f.spread:g}")
        text += f" + {f.noise} noise{size}"
    for index, value in f.plants:
        text += f", {value:g} at {list(index)}"
    return text


def _describe_mask(m: Mask) -> str:
    each = " and ".join(n for n, own in (("batch", m.per_batch), ("head", m.per_head)) if own)
    of_each = f", one more in each further {each}" if each else ""
    none = m.hides in ("tail", "head") and not m.amount and not each
    hidden = {
        "nothing": "nothing hidden",
        "tail": f"last {_count(m.amount, 'key', 'keys')} hidden{of_each}",
        "head": f"first {_count(m.amount, 'key', 'keys')} hidden{of_each}",
        "row": f"query {m.amount} sees no key",
        "block": f"keys {16 * m.amount} to {16 * m.amount + 15} hidden",
        "future": f"keys beyond the query's position + {m.amount} hidden",
        "window": f"keys further than {m.amount} hidden",
        "random": "about half hidden at random",
        "all": "every key hidden",
        "holes": f"every third key hidden, from key {m.amount % 3} on",
        "dent": f"keys beyond the query's position + {m.amount} hidden, and key 0 from query 2",
    }["nothing" if none else m.hides]
    kind = "boolean mask" if m.kind == "bool" else f"additive {m.dtype} mask"
    own = f", one for each {each}" if each else ""
    own += "" if m.per_query or m.rank == 1 else ", the same for every query"
    own += "" if m.per_key else ", the same for every key"
    text = f"{kind} of rank {m.rank}{own} ({hidden}"
    if m.kind == "additive" and m.bias != Fill():
        text += f", bias {describe_fill(m.bias, 'k')}"
    return text + ")"
