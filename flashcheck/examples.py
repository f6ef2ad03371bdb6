"""Examples: counterexamples as files that travel.

An example is `fc-xxxxxxxx.json`, and `fc-xxxxxxxx.safetensors` beside it only where a user's
tensors were captured, which no recipe can rebuild. Reading one runs no code and imports no
kernel. Nothing here deletes a file.

A file proves itself when it is read: `digest` covers everything in the JSON, the partner's
sha256 is in the JSON, and `inputs_sha256` is that of the input bits: a recipe that rebuilds to
other bits on this machine is refused.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from flashcheck import environment as environments
from flashcheck.bits import bits_sha256, pack, unpack
from flashcheck.fills import Fill
from flashcheck.inputs import LAYOUTS, Inputs
from flashcheck.kernel import Target
from flashcheck.legality import assumed
from flashcheck.masks import Mask
from flashcheck.problem import Problem, ProblemError
from flashcheck.records import floats, plain, sha256, write_whole
from flashcheck.sentence import describe
from flashcheck.strategies import Space, forms_of
from flashcheck.tensors import BY_PROBLEM_ALONE
from flashcheck.verdict import Check, Verdict, Worst

FORMAT_VERSION = 1
"""Version of an example's JSON. Rises when an old reader would misunderstand it."""

FOLDER = Path(".flashcheck/examples")
"""Where examples are saved and looked for by default."""

SIZE_LIMIT = 10_000
"""Bytes of an example's JSON; beyond it the explanation is cut, then what was found first."""

_KIND = "flashcheck-example"
_ID = re.compile(r"(?:fc-)?([a-z2-7]{1,8})")
_OPTIONS = ("scale", "is_causal", "mask_dtype", "enable_gqa", "layout")
_CUT = " ... (cut to keep the example small)"


class ExampleError(Exception):
    """An example that cannot be read or written: one line with the file and what to do."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One failing check, with everything needed to make it again.

    problem     the shrunk recipe. Where tensors were captured, their shapes and options and
                the seed that properties read
    captured    the tensors where a recipe cannot rebuild them (see `of_tensors`)
    target      the TARGET as the user typed it; name and source (a sha256) are the kernel's
    check       what was found; its `stats` are not saved
    seed        of the run that found it
    contrast    sentences about neighbours that pass or fail
    text        the explanation as the terminal shows it
    found       the problem before it was shrunk
    mask_forms  the mask forms that probing found, which one property chooses from; None: all
    dense       whether the kernel takes calls without sequences, as probing found
    """

    problem: Problem
    property: str
    target: str
    name: str
    check: Check
    config: str | None = None
    captured: Inputs | None = None
    source: str | None = None
    device: str = "cpu"
    seed: int | None = None
    contrast: tuple[str, ...] = ()
    text: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    found: Problem | None = None
    mask_forms: frozenset[tuple[str, str, int]] | None = None
    dense: bool = True
    format_version: int = FORMAT_VERSION

    def space(self, target: Target) -> Space:
        """What of probing's findings a property looks at, as far as it is known without it."""
        space = replace(assumed(target, self.problem), dense=self.dense)
        if self.mask_forms is None:
            return space
        return replace(space, mask_forms=self.mask_forms | forms_of(self.problem))

    @cached_property
    def id(self) -> str:
        """fc- and eight characters of a hash of what defines the check, and of nothing else."""
        what = {
            "problem": self.problem.to_dict(),
            "inputs": None if self.captured is None else self.inputs_sha256,
            "property": self.property,
            "target": self.target,
            "config": self.config,
        }
        return "fc-" + base64.b32encode(sha256(what))[:8].decode().lower()

    @cached_property
    def inputs_sha256(self) -> str:
        return bits_sha256(self.inputs)

    @cached_property
    def dtype(self) -> str:
        return self.problem.dtype

    @cached_property
    def inputs(self) -> Inputs:
        """The captured tensors, or those that the recipe makes."""
        return self.problem.inputs() if self.captured is None else self.captured

    @cached_property
    def sentence(self) -> str:
        """The problem in words."""
        if self.captured is None:
            return describe(self.problem)
        shapes = describe(self.problem).split("; q = ")[0]
        return shapes.replace("(nothing hidden)", "(captured)") + "; captured tensors"

    def brief(self) -> str:
        """The failure without an explanation."""
        lines = [
            f"{self.name}  {self.dtype}  {self.property}  {self.id}",
            f"  {self.check.verdict}: {self.check.message}",
            f"  {self.sentence}",
            *(f"  {sentence}" for sentence in self.contrast),
            f"  flashcheck replay {self.id}",
        ]
        return "\n".join(lines)

    def render(self) -> str:
        """The explanation and where it was recorded, for the terminal."""
        text = self.text.rstrip() or self.brief()
        recorded = [f"  {line}" for line in environments.lines(self.environment)]
        return "\n".join([text, "", "  recorded with", *(f"  {x}" for x in recorded)])


def of_tensors(inputs: Inputs, seed: int = 0) -> tuple[Problem, Inputs]:
    """`problem` and `captured` for a user's tensors; the kernel declares how causal aligns.

    Raises ValueError for a packed batch and for a paged cache.
    """
    if inputs.seqlens_k is not None:
        raise ValueError(BY_PROBLEM_ALONE)
    b, hq, hkv, lq, lk, d, dv = inputs.shape
    mask = None
    if inputs.mask is not None:
        mask = Mask(
            kind="bool" if inputs.mask.dtype == bool else "additive",
            dtype="float32" if inputs.mask_dtype in ("bool", "float32") else "query",
            rank=inputs.mask.ndim,
        )
    factors: dict[str, Any] = {name: Fill() for name in inputs.factors}
    if any(getattr(inputs, name).ndim == 3 for name in factors):
        factors |= {"descale_per": "block", "descale_block": inputs.descale_block}
    problem = Problem(
        dtype=inputs.dtype, batch=b, heads=hq, kv_heads=hkv, len_q=lq, len_k=lk, dim=d, dim_v=dv,
        seed=seed, scale=inputs.scale, is_causal=inputs.is_causal, mask=mask,
        window=inputs.window, softcap=inputs.softcap, num_splits=inputs.num_splits,
        alibi_slopes=None if inputs.alibi_slopes is None else Fill(),
        sinks=None if inputs.sinks is None else Fill(),
        layout=inputs.layout, scores="captured", values="captured", **factors,
    )  # fmt: skip
    return problem, inputs.with_(bottom_right=False)


# -- writing ------------------------------------------------------------------------------


def save(example: Example, folder: str | os.PathLike[str] = FOLDER) -> Path:
    """Write the example as <id>.json, replacing an older one of the same check.

    Each file appears whole or not at all. Raises ExampleError for tensors that do not fit
    their dtype, OSError where the folder cannot be written.
    """
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    path = where / f"{example.id}.json"
    partner = None
    if example.captured is not None:
        try:
            partner = pack(example.captured)
        except ValueError as error:
            _refuse(path, f"cannot be written: {error}", "capture the tensors in their dtype")
        write_whole(path.with_suffix(".safetensors"), partner)
    data = _document(example, partner)
    cuts: tuple[dict[str, Any], ...] = (
        {"text": example.text[:2000] + _CUT},
        {"found": None, "contrast": example.contrast[:8]},
    )
    for cut in cuts:
        if len(data) > SIZE_LIMIT:
            example = replace(example, **cut)
            data = _document(example, partner)
    write_whole(path, data)
    return path


def _document(e: Example, partner: bytes | None) -> bytes:
    c = e.check
    record = {
        "kind": _KIND,
        "format_version": FORMAT_VERSION,
        "id": e.id,
        "kernel": {"target": e.target, "name": e.name, "source": e.source, "config": e.config},
        "property": e.property,
        "dtype": e.dtype,
        "device": e.device,
        "verdict": c.verdict.value,
        "symptom": c.symptom,
        "ratio": c.ratio,
        "message": c.message,
        "worst": None if c.worst is None else asdict(c.worst),
        "counts": c.counts,
        "seed": e.seed,
        "problem": e.problem.to_dict(),
        "found": None if e.found is None else e.found.to_dict(),
        "inputs_sha256": e.inputs_sha256,
        "captured": None if e.captured is None else _captured(e.captured, partner),
        "mask_forms": None if e.mask_forms is None else sorted("/".join(map(str, f))
                                                               for f in e.mask_forms),
        **({} if e.dense else {"dense": False}),
        "contrast": e.contrast,
        "text": e.text.split("\n"),
        "environment": e.environment,
    }  # fmt: skip
    record["digest"] = sha256(record).hex()
    text = json.dumps(plain(record), indent=1, sort_keys=True, ensure_ascii=False)
    return text.encode() + b"\n"


def _captured(x: Inputs, partner: bytes | None) -> dict[str, Any]:
    options = {n: getattr(x, n) for n in _OPTIONS} | {"passed": sorted(x.passed)}
    further = {"window_size": "window", "softcap": "softcap", "num_splits": "num_splits"}
    options |= {field: getattr(x, field) for name, field in further.items() if name in x.used}
    return options | {"sha256": hashlib.sha256(partner or b"").hexdigest()}


# -- reading ------------------------------------------------------------------------------


def load(path: str | os.PathLike[str]) -> Example:
    """Read an example and verify it to the last bit. Raises ExampleError."""
    file = Path(path)
    record = _read_json(file)
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        _refuse(file, "is not a flashcheck example", "pass a file that flashcheck gate saved")
    version = record.get("format_version")
    if version != FORMAT_VERSION or isinstance(version, bool):
        newer = isinstance(version, int) and version > FORMAT_VERSION
        what = f"has format_version {version!r} and this flashcheck reads {FORMAT_VERSION}"
        _refuse(file, what, "upgrade flashcheck" if newer else "get the file again")
    digest = record.pop("digest", None)
    again = "get the file again, or have the gate find it anew"
    if digest != sha256(record).hex():
        _refuse(file, "was changed after it was saved (its digest does not match)", again)
    try:
        example = _example(record, file)
    except ProblemError as error:
        _refuse(file, f"cannot be rebuilt: {error}", "use the flashcheck that saved it")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _refuse(file, f"is malformed ({type(error).__name__}: {error})", again)
    if example.id != record["id"]:
        _refuse(file, f"says it is {record['id']} and is {example.id}", again)
    if example.inputs_sha256 != record["inputs_sha256"]:
        saved_by = example.environment.get("versions", {}).get("flashcheck", "that saved it")
        do = f"replay it with flashcheck {saved_by}; if that is this one, please report it"
        _refuse(file, "does not rebuild to the input bits that failed", do)
    return example


def _read_json(file: Path) -> Any:
    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON")

    try:
        data = file.read_bytes()
    except FileNotFoundError:
        _refuse(file, "does not exist", "flashcheck replay DIR shows what a folder holds")
    except OSError as error:
        _refuse(file, f"cannot be read ({error.strerror})", "pass an example's JSON file")
    try:
        return json.loads(data.decode(), parse_constant=constant)
    except (ValueError, RecursionError):
        what = "is empty" if not data.strip() else "is no valid JSON; it may be cut short"
        _refuse(file, what, "get the file again from where it was saved")


def _example(record: dict[str, Any], file: Path) -> Example:
    kernel, worst, forms = record["kernel"], record["worst"], record["mask_forms"]
    captured = None if record["captured"] is None else _load_tensors(record, file)
    return Example(
        problem=Problem.from_dict(floats(record["problem"])),
        property=str(record["property"]),
        target=str(kernel["target"]),
        name=str(kernel["name"]),
        source=kernel["source"],
        config=kernel["config"],
        captured=captured,
        device=str(record["device"]),
        check=Check(
            property=str(record["property"]),
            verdict=Verdict(record["verdict"]),
            ratio=float(record["ratio"]),
            symptom=str(record["symptom"]),
            message=str(record["message"]),
            worst=None if worst is None else _worst(worst),
            counts={str(name): int(n) for name, n in record["counts"].items()},
        ),
        seed=record["seed"],
        contrast=tuple(map(str, record["contrast"])),
        text="\n".join(record["text"]),
        environment=dict(record["environment"]),
        found=None if record["found"] is None else Problem.from_dict(floats(record["found"])),
        mask_forms=None if forms is None else frozenset(map(_mask_form, forms)),
        dense=bool(record.get("dense", True)),
    )


def _load_tensors(record: dict[str, Any], file: Path) -> Inputs:
    options = dict(record["captured"])
    partner = file.with_suffix(".safetensors")
    try:
        data = partner.read_bytes()
    except OSError:
        _refuse(file, f"needs {partner.name} beside it, which cannot be read", "copy both files")
    if hashlib.sha256(data).hexdigest() != options.pop("sha256"):
        _refuse(partner, "was changed or cut short after it was saved", "copy it again")
    if options["layout"] not in LAYOUTS:
        raise ValueError(f"unknown layout {options['layout']!r}")
    dtype = record["problem"].get("dtype", "float32")
    tensors = unpack(data, dtype, options["mask_dtype"])
    options["passed"] = frozenset(options["passed"])
    if "window" in options:
        options["window"] = tuple(options["window"])
    return Inputs(**{"dtype": dtype, **tensors, **floats(options)})


def _worst(w: dict[str, Any]) -> Worst:
    numbers = {k: float(w[k]) for k in ("got", "expected", "error", "bound", "radius")}
    return Worst(output=str(w["output"]), index=tuple(map(int, w["index"])), **numbers)


def _mask_form(text: str) -> tuple[str, str, int]:
    kind, dtype, rank = text.split("/")
    return kind, dtype, int(rank)


def _refuse(file: Path, what: str, do: str) -> NoReturn:
    raise ExampleError(" ".join(f"{file} {what}: {do}".split())) from None


# -- finding ------------------------------------------------------------------------------


def find(what: str | None = None, folder: str | os.PathLike[str] = FOLDER) -> list[Path]:
    """The example files that `what` names, in the order of their ids.

    None is all of `folder`; a directory is all below it; otherwise a file's path, or an id of
    `folder` with or without "fc-", whose end may be left out where one example begins so.
    Raises ExampleError where nothing, or more than one example, is meant.
    """
    root = Path(folder)
    if what is None:
        return _below(root)
    path = Path(what)
    if path.is_dir():
        return _below(path)
    if path.suffix in (".json", ".safetensors") or len(path.parts) > 1:
        file = path.with_suffix(".json")
        for candidate in (file, root / file):
            if candidate.is_file():
                return [candidate]
        _refuse(path, "does not exist", "pass an example's id, its file or a folder")
    match = _ID.fullmatch(what.lower())
    known = sorted(root.glob("fc-*.json"))
    if match is None:
        _refuse(path, "is no example's id, file or folder", "an id looks like fc-7k2m9qab")
    fits = [p for p in known if p.stem.removeprefix("fc-").startswith(match[1])]
    if len(fits) > 1:
        _refuse(path, f"is the beginning of {len(fits)} ids ({_some(fits)})", "give more of it")
    if not fits:
        has = f"which has {_some(known)}" if known else "which has no example"
        _refuse(path, f"is not in {root}, {has}", "pass the file, or --examples DIR")
    return fits


def _below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("fc-*.json"), key=lambda p: (p.name, p))


def _some(files: list[Path]) -> str:
    return ", ".join(p.stem for p in files[:4]) + (", ..." if len(files) > 4 else "")
