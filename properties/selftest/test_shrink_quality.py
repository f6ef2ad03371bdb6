"""Shrunk problems are what a person would have written: one small fault of a kernel each."""

from __future__ import annotations

import math
from functools import cache
from itertools import islice

import torch

from flashcheck.causes import Cause, causes
from flashcheck.kernel import Kernel
from flashcheck.law import Subject, laws
from flashcheck.search import Search
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

BLOCK = 32
AGREEMENT = laws()[0]
SPACE = Space(max_length=130, work=100_000)
SEEDS = (0, 1, 2)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    fault: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Online softmax in torch over blocks of 32 keys, with one fault, or none."""
    q, k, v = query.float(), key.float(), value.float()
    (_, heads, rows, dim), n = q.shape, k.shape[2]
    if enable_gqa:
        h = torch.arange(heads)
        kv = h % k.shape[1] if fault == "gqa" else h // (heads // k.shape[1])
        k, v = k[:, kv], v[:, kv]
    if fault == "batch":
        k = k[:1].expand_as(k)
    factor = 1 / math.sqrt(dim) if scale is None or fault == "scale" else scale
    s = (q @ k.mT) * factor
    i, j = torch.arange(rows)[:, None], torch.arange(n)
    if is_causal:
        shift = {"sees next": 1, "not itself": -1}.get(fault, 0)
        s = s.masked_fill(j > i + shift, -math.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        s = s.masked_fill(attn_mask if fault == "inverted" else ~attn_mask, -math.inf)
    elif attn_mask is not None and fault != "additive":
        s = s + attn_mask.float()
    hidden = {
        "first key": j == 0,
        "last key": (j == n - 1) & (n > 1),
        "keys 64": (j >= 64) & (rows > 16),
        "odd keys": (j % 2 == 1) & (n % 2 == 1),
    }.get(fault)
    if hidden is not None:
        s = s.masked_fill(hidden, -math.inf)
    stop = n - n % BLOCK if fault == "tail" and n > BLOCK else n

    m = torch.full((*s.shape[:3], 1), 0.0 if fault in ("no max", "m is 0") else -math.inf)
    l, acc = torch.zeros_like(m), torch.zeros(*s.shape[:3], v.shape[3])
    for start in range(0, stop, BLOCK):
        block = s[..., start : start + BLOCK]
        new = torch.maximum(m, block.amax(-1, keepdim=True))
        if fault == "no max":
            new = m
        if fault == "row 0":
            new = new[:, :, :1].expand_as(new)
        ref = new if fault == "nan rows" else new.masked_fill(new == -math.inf, 0.0)
        p, alpha = (block - ref).exp(), (m - ref).exp()
        l = l * alpha + p.sum(-1, keepdim=True)
        acc = acc * (1 if fault == "no rescale" else alpha) + p @ v[:, :, start : start + BLOCK]
        m = new
    out = acc / (l if fault == "nan rows" and n else l.masked_fill(l == 0, 1.0))
    if fault == "dv":
        out[..., dim:] = 0
    if fault == "scale 0" and scale == 0:
        out = out * math.nan
    if fault == "rows":
        out[:, :, 1:] = out[:, :, :1]
    return out.to(query.dtype), (m + l.log())[..., 0].float()


@cache
def subject(fault: str, dtype: str = "float32", lse: bool = True) -> Subject:
    def fn(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
        attn_mask: torch.Tensor | None = None, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        both = attention(
            query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa, fault=fault,
        )  # fmt: skip
        return both if lse else both[0]

    runner = InProcess(Kernel(fn, name="attention"))
    return Subject(runner, runner.start(), SPACE)


def shrunk(fault: str, seed: int) -> tuple[list[Cause], int]:
    kernel = subject(fault)
    search = Search(kernel, [AGREEMENT], quota=150, deadline=None, checked=lambda *_: None)
    search.run(seed)
    return list(islice(causes(search.failures, {"float32": kernel}, AGREEMENT), 3)), search.problems
