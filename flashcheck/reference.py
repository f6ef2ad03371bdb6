"""Reference: attention in float64, in the torch statements that a script writes."""

from __future__ import annotations

from flashcheck.inputs import Inputs


def statements(x: Inputs, output: str) -> list[str]:
    """Attention in float64: scores s, weights p and values w."""
    repeat = f".repeat_interleave({x.heads_per_kv}, 1)" if x.heads_per_kv > 1 else ""
    d = x.q.shape[3]
    scale = f"* {x.scale!r}" if x.scale is not None else f"/ math.sqrt({d})"
    lines = [f"s = q.double() @ k.double(){repeat}.mT {scale}"]
    if x.softcap:
        lines.append(f"s = {x.softcap!r} * (s / {x.softcap!r}).tanh()")
    if x.placed:
        lines.append("right = torch.arange(s.shape[-1], device=s.device) - (")
        lines.append(f"    torch.arange(s.shape[-2], device=s.device)[:, None] + {x.shift})")
    if x.alibi_slopes is not None:
        slopes = [float(slope) for slope in x.alibi_slopes]
        lines.append(f"slopes = torch.tensor({slopes}, dtype=torch.float64, device=s.device)")
        lines.append("s = s - slopes[:, None, None] * right.abs()")
    if x.mask is not None:
        hides = x.mask.dtype == bool
        lines.append("s = s.masked_fill(~mask, -math.inf)" if hides else "s = s + mask.double()")
    if x.is_causal:
        shift = x.k.shape[2] - x.q.shape[2] if x.bottom_right else 0
        lines.append("earlier = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device)")
        lines.append(f"s = s.masked_fill(~earlier.tril({shift}), -math.inf)")
    for side, n in zip("<>", x.window, strict=True):
        if n >= 0:
            end = -n if side == "<" else n
            lines.append(f"s = s.masked_fill(right {side} {end}, -math.inf)")
    if x.sinks is not None:
        sinks = [float(sink) for sink in x.sinks]
        lines.append(f"sink = torch.tensor({sinks}, dtype=torch.float64, device=s.device)")
        lines.append("sink = sink[:, None, None].expand(*s.shape[:-1], 1)")
        lines.append("s = torch.cat([s, sink], -1)  # one key more, of value 0")
    if output == "out":
        blind = not x.visible.any(-1).all() and x.sinks is None
        zero = ".nan_to_num(0.0)  # a row that sees no key gives 0" if blind else ""
        lines.append(f"p = s.softmax(-1){zero}")
        lines.append(f"w = v.double(){repeat}")
        if x.sinks is not None:
            lines.append("w = torch.cat([w, torch.zeros_like(w[..., :1, :])], -2)")
    return lines
