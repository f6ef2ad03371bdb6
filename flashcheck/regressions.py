"""Regressions: examples that are kept, and checked before anything is generated.

Those of flashcheck itself come with it; a project keeps its own in a folder that it commits.
Each is checked on every kernel that takes its problem, whichever kernel it was found on.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flashcheck import legality
from flashcheck.examples import Example, ExampleError, load
from flashcheck.kernel import Target
from flashcheck.law import laws
from flashcheck.records import write_whole
from flashcheck.search import Search
from flashcheck.strategies import Space
from flashcheck.verdict import Check

FOLDER = Path("properties/regressions")
"""Where a project keeps its regressions by default."""


@dataclass(frozen=True, slots=True)
class Regressions:
    """examples: each once, in the order of their ids; damaged: a line for each that cannot be
    checked, with its file and what to do."""

    examples: tuple[Example, ...] = ()
    damaged: tuple[str, ...] = ()


def promote(path: Path, folder: Path) -> tuple[Path, ...]:
    """Copy an example, with its tensors, into `folder`; returns the files that were written.

    Raises ExampleError for a damaged example, OSError where the folder cannot be written.
    """
    load(path)
    folder.mkdir(parents=True, exist_ok=True)
    # The tensors first: an example without them is damaged, tensors alone are nothing.
    beside = path.with_suffix(".safetensors")
    sources = [beside, path] if beside.is_file() else [path]
    for source in sources:
        write_whole(folder / source.name, source.read_bytes())
    return tuple(folder / source.name for source in sources)


def read(own: Path) -> Regressions:
    """flashcheck's own regressions and those of the folder `own`, where it exists."""
    package = importlib.import_module("flashcheck.properties")
    shipped = [Path(place) / "regressions" for place in package.__path__]
    known = {law.name for law in laws()}
    examples: dict[str, Example] = {}
    damaged = []
    for folder in {place.resolve(): place for place in (*shipped, own)}.values():
        for file in sorted(folder.glob("fc-*.json")):
            try:
                example = load(file)
            except ExampleError as error:
                damaged.append(str(error))
                continue
            if example.property not in known:
                damaged.append(
                    f"{file} is about {example.property}, which this flashcheck has not: "
                    "upgrade it, or remove the file"
                )
                continue
            examples.setdefault(example.id, example)
    return Regressions(tuple(examples[name] for name in sorted(examples)), tuple(damaged))


def first(
    search: Search, examples: Iterable[Example]
) -> Iterator[tuple[Example, str | None, Check]]:
    """Check the examples that a search's kernel takes, each by agreement and its own property.

    They are checked whatever the search's budget is, and leave it as it is.
    """
    subject = search.subject
    agreement = search.laws[0]
    for example in examples:
        if example.dtype != subject.space.dtype or search.lost:
            continue
        if why_not(example, subject.space, subject.target):
            continue
        configs = subject.target.configs
        config = example.config if example.config in configs else configs[0]
        case = subject.case(example.problem, config, example.captured)
        chosen = [law for law in search.laws if law is agreement or law.name == example.property]
        chosen = [law for law in chosen if law.applies(case)]
        for check in search.judge(case, chosen, example.id):
            yield example, config, check


def untested(kept: Regressions, spaces: Mapping[str, Space], target: Target) -> tuple[str, ...]:
    """Sentences: which regressions a kernel is not checked on, and why."""
    reasons = Counter(
        why
        for example in kept.examples
        if example.dtype in spaces
        for why in [why_not(example, spaces[example.dtype], target)]
        if why
    )
    lines = [f"{n} regression{'s' if n > 1 else ''}: {why}" for why, n in sorted(reasons.items())]
    return (*lines, *(f"a regression: {line}" for line in kept.damaged))


def why_not(example: Example, space: Space, target: Target) -> str:
    """Why a kernel cannot be asked this example's problem in this dtype; "" if it can."""
    x = example.inputs
    cannot = legality.why_not(example.problem, x, space)
    if cannot:
        return f"the kernel {cannot}"
    b, hq, _, lq, lk, d, dv = x.shape
    work = b * hq * lq * max(lk, 1) * (d + dv)
    large = max(lq, lk) > space.max_length or b * hq > space.max_heads or work > space.work
    if target.interpreted and large:
        return "too large for Triton's interpreter; gate it on a GPU"
    return ""
