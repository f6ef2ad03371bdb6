"""Short numbers, verdict words, and the sentences that say what a run did not test."""

from __future__ import annotations

import math
from collections import Counter

from flashcheck.reporting.summary import RunSummary, SizesSummary, TargetSummary

_WORDS = {0: "PASSED", 1: "FAILED", 2: "COULD NOT RUN", 3: "PROVES NOTHING", 130: "INTERRUPTED"}


def verdict_word(summary: RunSummary) -> str:
    code = summary.exit_code
    return "INTERRUPTED" if code is None else _WORDS.get(code, f"EXIT {code}")


def number(x: float | None) -> str:
    """Two significant digits: "0.31", "12", "2.0e3", "inf"; "-" for None."""
    if x is None:
        return "-"
    if not math.isfinite(x):
        return {math.inf: "inf", -math.inf: "-inf"}.get(x, "nan")
    if x == 0:
        return "0"
    text = f"{x:.1e}"
    exponent = int(text[text.index("e") + 1 :])
    if not -3 <= exponent <= 2:
        return f"{text[: text.index('e')]}e{exponent}"
    # From 100 on the third digit costs no room and spares "1.3e2".
    return f"{x:.{max(0, 1 - exponent)}f}"


def ratio(x: float | None) -> str:
    """As `number`, with the digits that tell which side of 1 it is on."""
    if x is None or x == 1 or number(x) != "1.0":
        return number(x)
    digits = 3
    while digits < 17 and float(f"{x:.{digits - 1}f}") == 1:
        digits += 1
    return f"{x:.{digits - 1}f}"


def bits(x: float | None) -> str:
    """Headroom: "1.7 bits"."""
    if x is None:
        return "-"
    return f"{x:.1f} bits" if math.isfinite(x) else number(x)


def signed(x: float, error: float | None) -> str:
    """A mean with its standard error: "+0.002 ± 0.011"."""
    sign = "-" if x < 0 else "+"
    return f"{sign}{number(abs(x))} ± {number(error)}"


def count(n: int, one: str, many: str | None = None) -> str:
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def power(summary: RunSummary) -> list[str]:
    """What a sample of faults says of the gate, survivors after it; empty without a sample."""
    p = summary.power
    if p is None:
        return []
    line = (
        f"{p.killed} of {count(p.trials, 'fault')} in kernels broken on purpose caught, "
        f"lower limit {p.limit:.2f}, median {p.problems:g} problems"
    )
    return [line, *p.survivors]


def tried(sizes: SizesSummary) -> str:
    """The sizes that a run tried, in words: what it says nothing about is any other."""
    heads = ", ".join(map(str, sizes.head_sizes))
    word = "head size" if len(sizes.head_sizes) == 1 else "head sizes"
    longest = f"{count(sizes.queries, 'query', 'queries')}, {count(sizes.keys, 'key')}"
    text = f"{word} {heads}; up to {longest} and {count(sizes.heads, 'head')} of all batches"
    return f"{text}, {count(sizes.sequences, 'sequence')}" if sizes.sequences else text


def headline(summary: RunSummary) -> str:
    """What was run, in one line: kernels, checks, causes, time."""
    parts = [count(len(summary.targets), "kernel"), count(summary.checks, "check")]
    if summary.errors:
        parts.append(f"{len(summary.errors)} could not run")
    causes = summary.failures
    if causes:
        failing = count(sum(f.count for f in causes), "failing check")
        parts.append(f"{count(len(causes), 'cause')} in {failing}")
    parts.append(duration(summary.seconds))
    return ", ".join(parts)


def untested(summary: RunSummary) -> list[tuple[str, str]]:
    """(who, sentence) for all that the run leaves open, what it was told first."""
    told = [(t.name, sentence) for t in summary.targets for sentence in t.untested]
    return told + shortfalls(summary)


def shortfalls(summary: RunSummary) -> list[tuple[str, str]]:
    """(who, sentence) for what only the end of a run shows: no checks, too few, vacuous."""
    found = [(e.spec, f"could not run: {first_line(e.message)}") for e in summary.errors]
    known = {t.name for t in summary.targets} | {t.spec for t in summary.targets}
    known |= {e.spec for e in summary.errors}
    found += [(name, "never reached") for name in summary.requested if name not in known]
    for target in summary.targets:
        found += [(target.name, sentence) for sentence in _gaps(target)]
    if summary.partial:
        found.append(("this run", "is partial: it stopped before the end"))
    elif not summary.checks and not summary.errors:
        found.append(("this run", "made no check at all"))
    return found


def _gaps(target: TargetSummary) -> list[str]:
    results = target.results
    empty = [d for d in target.dtypes if d not in results or not results[d].checks]
    sentences = [f"no check ran in {', '.join(empty)}"] if empty else []
    for label, name in (
        ("vacuous (the bound is too wide to say anything)", "vacuous"),
        ("refused (NotImplementedError)", "refused"),
        ("on problems drawn outside the contract, not judged", "outside"),
    ):
        share = [
            f"{dtype} {n:,} of {r.checks + (r.refused if name == 'refused' else 0):,}"
            for dtype, r in results.items()
            if (n := getattr(r, name))
        ]
        if share:
            said = _refusals(target) if name == "refused" else ""
            sentences.append(f"checks {label}: {', '.join(share)}{said}")
    if target.thin:
        sentences.append(f"too few checks to prove anything: {', '.join(target.thin)}")
    return sentences


def _refusals(target: TargetSummary) -> str:
    """What the kernel said most often when it refused, at most three messages."""
    said: Counter[str] = Counter()
    for result in target.results.values():
        for message, times in result.refusals.items():
            said[first_line(message)] += times
    texts = [text for text, _ in said.most_common(3) if text]
    return f" (it says: {'; '.join(texts)})" if texts else ""


def first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
