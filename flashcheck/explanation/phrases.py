"""Phrases: numbers, sets of positions and elements in words, for explanations."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence


def short(x: float) -> str:
    """Three significant digits: "0.0303", "1.48", "3.1e-5", "65504"."""
    if not math.isfinite(x):
        return {math.inf: "inf", -math.inf: "-inf"}.get(x, "nan")
    if x == int(x) and abs(x) < 1e6:
        return str(int(x))
    text = f"{x:.3g}" if abs(x) < 1000 else f"{x:.4g}"
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")


def apart(x: float, y: float) -> tuple[str, str]:
    """Both as `short` writes them, with the digits that tell one from the other."""
    digits = 4
    texts = short(x), short(y)
    while texts[0] == texts[1] and x != y and digits <= 17:
        texts = f"{x:.{digits}g}", f"{y:.{digits}g}"
        digits += 1
    return texts


def times(ratio: float) -> str:
    """How often the bound: "2,000 times the bound"."""
    if not math.isfinite(ratio):
        return "no bound allows it"
    if ratio >= 1e12:
        return "more than 1e12 times the bound"
    if ratio >= 1e6:
        return f"{short(ratio)} times the bound"
    return f"{ratio:,.0f} times the bound" if ratio >= 100 else f"{ratio:.3g} times the bound"


def power(x: float) -> str:
    """The nearest power of two: "2^-9"."""
    return f"2^{round(math.log2(x))}" if x > 0 else "0"


def runs(indices: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of consecutive numbers as (first, last)."""
    found: list[tuple[int, int]] = []
    for i in sorted(set(indices)):
        if found and found[-1][1] == i - 1:
            found[-1] = (found[-1][0], i)
        else:
            found.append((i, i))
    return found


def those(indices: Iterable[int], one: str, many: str) -> str:
    """Such as "key 32", "keys 32 to 40", "keys 0, 4 and 9 to 11"."""
    found = runs(indices)
    parts = [str(a) if a == b else f"{a} to {b}" for a, b in found]
    if len(found) == 1 and found[0][0] == found[0][1]:
        return f"{one} {parts[0]}"
    if len(parts) > 5:
        count = sum(b - a + 1 for a, b in found)
        return f"{count} {many} ({', '.join(parts[:4])}, ...)"
    return f"{many} {join(parts)}"


def keys(indices: Iterable[int]) -> str:
    return those(indices, "key", "keys")


def queries(indices: Iterable[int]) -> str:
    return those(indices, "query", "queries")


def join(parts: Sequence[str], last: str = "and") -> str:
    """Such as "a", "a and b", "a, b and c"."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def element(output: str, index: Sequence[int]) -> str:
    """Such as "o[b=0, h=0, query=0, d=0]"."""
    names = ("b", "h", "key" if output.endswith(("dk", "dv")) else "query", "d")
    inside = ", ".join(f"{n}={i}" for n, i in zip(names, index, strict=False))
    return f"{'o' if output == 'out' else output}[{inside}]"


def row_name(shape: Sequence[int], row: Sequence[int]) -> str:
    """Such as "query 3", with its head and batch where there are several."""
    text = f"query {row[2]}"
    if shape[1] > 1:
        text += f" of head {row[1]}"
    if shape[0] > 1:
        text += f"{',' if shape[1] > 1 else ''} batch {row[0]}"
    return text


_CODE = ("lse", "o", "dq", "dk", "dv", "is_causal", "attn_mask")


def sentence_case(text: str) -> str:
    """With a capital first letter, unless it begins with a name of the code, and a full stop."""
    if re.split(r"[ \[,]", text, maxsplit=1)[0] not in _CODE:
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
