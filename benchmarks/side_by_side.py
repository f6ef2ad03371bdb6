"""Side by side: other projects' criteria and flashcheck, on the same faults and clean kernels

    python benchmarks/side_by_side.py > reports/side_by_side.md

Each fault counts in the dtypes in which it has a witness. A criterion kills a fault that it
rejects on any of its inputs: those of its own project's tests, re-created from their description
(benchmarks/own_inputs.py), or ours, the first N problems of flashcheck's search. It rejects a
clean kernel likewise. A criterion that rejects everything kills everything: a share in brackets
counts those inputs alone on which the kernel without the fault passes, where that is less.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

import numpy as np
import torch
from own_inputs import OWN
from page import head
from policies import LSE_POLICIES, MORE_POLICIES, POLICIES, Policy, Seen

from flashcheck import environment, oracle
from flashcheck.bounds import Bound, bound
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Inputs
from flashcheck.judge import Judge
from flashcheck.kernel import Contract
from flashcheck.law import Subject, laws
from flashcheck.openings import endings, openings
from flashcheck.oracle import float64
from flashcheck.power.trial import spec
from flashcheck.power.witness import witnesses
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.search import LAWS_PER_PROBLEM
from flashcheck.strategies import Space, drawn
from flashcheck.verdict import Verdict
from flashcheck.worker import Call, InProcess, Reply

DTYPES = ("float32", "float16", "bfloat16")
USUAL = ("numpy_naive", "numpy_online", "fp32_stats", "torch_sdpa[math]", "torch_sdpa[flash]")

SLOW = tuple(
    f"extremal[{name}]"
    for name in ("sequential_ascending", "sequential_descending", "block_of_one")
)
MOST_PRODUCTS = 1 << 22
"""Kernels that add term by term in Python, and the products of q and k up to which they are run;
and up to which any kernel is run again.
"""

OURS = "ours"
OUT, AGREEMENT, ALL = "flashcheck, out alone", "flashcheck, agreement", "flashcheck"
REPEAT, PADDING = "bitwise repeat", "NaN in the padding"
GPUCHECK, GPUEMU = "gpucheck 0.1.0", "gpuemu 0.1.0"

PROJECT: dict[str, str] = {
    "flash-attention 3": "flash-attention", "torch.testing.assert_close": "torch",
    "torch SDPA tests": "torch", "FlexAttention": "torch", "FlexAttention, newer": "torch",
    "FlashInfer, ratio": "FlashInfer", "FlashInfer, MSE": "FlashInfer", "JAX nn": "JAX",
    "JAX Pallas": "JAX", "JAX Mosaic": "JAX", "vLLM's derivation, per element": "vLLM",
    "cosine": "tilelang", "aiter": "flash-attention", "aiter, ratio": "flash-attention",
    "robust-kbench": "KernelBench", "array-api-tests": "flash-attention",
    OUT: "flash-attention", AGREEMENT: "flash-attention", REPEAT: "flash-attention",
    PADDING: "xFormers",
}  # fmt: skip
"""Whose inputs are a criterion's own, where not those of its name."""

PLAIN_REFERENCE = {"Triton tutorial", "vLLM"}
"""Criteria whose tests compare with a plain implementation in the kernel's own dtype."""

UNROUNDED = {"xFormers"}
"""Criteria whose tests leave the reference in float32."""


@dataclass(frozen=True, eq=False)
class Shown:
    """What criteria see of one problem besides a kernel's result."""

    x: Inputs
    at: float64.Attention
    seen: Seen
    bounds: dict[Contract, Bound] = field(default_factory=dict)

    @staticmethod
    def of(x: Inputs) -> Shown:
        fmt, at = FORMATS[x.dtype], float64.attention(x)
        return Shown(x, at, Seen(fmt, at.out, fmt.round(at.out), plain(x), at.abs_out))

    def bound(self, contract: Contract) -> Bound:
        if contract not in self.bounds:
            self.bounds[contract] = bound(self.x, self.at, contract)
        return self.bounds[contract]


def plain(x: Inputs) -> Array:
    """torch's own operators, each in the dtype, k times the scale first: what flash-attention's
    tests call the plain implementation. A row that sees no key is 0.
    """
    dtype = getattr(torch, x.dtype)
    q, k, v = (torch.from_numpy(t).to(dtype) for t in (x.q, x.k, x.v))
    k, v = (t.repeat_interleave(x.heads_per_kv, 1) for t in (k, v))
    scores = q @ (k * x.exact_scale).mT
    if x.bias is not None:
        scores = scores + torch.from_numpy(np.array(x.bias)).to(dtype)
    hidden = torch.from_numpy(~x.visible)
    scores = scores.masked_fill(hidden, -torch.inf)
    out = torch.softmax(scores, -1).masked_fill(hidden, 0.0) @ v
    return np.asarray(out.double().numpy())


Criterion = Callable[[Reply, Shown, Contract], bool]


def _within(with_lse: bool) -> Criterion:
    """flashcheck's agreement (properties/agreement.py), with the float64 oracle's work shared."""

    def passes(reply: Reply, shown: Shown, contract: Contract) -> bool:
        b, judge = shown.bound(contract), Judge("agreement")
        out, lse = reply.outs[0], reply.lses[0] if reply.lses and with_lse else None
        value = oracle.evaluate(shown.x, shown.at, b.out, b.lse, out, lse)
        judge.within("out", out, value.out, b.out, radius=value.out_radius, low=value.out_low)
        if lse is not None:
            judge.within("lse", lse, value.lse, b.lse, radius=value.lse_radius, low=value.lse_low)
        return not judge.check().failed

    return passes


def _of(name: str, policy: Policy) -> Criterion:
    def passes(reply: Reply, shown: Shown, contract: Contract) -> bool:
        seen = shown.seen
        if name in PLAIN_REFERENCE:
            seen = replace(seen, ref=seen.pt, golden=seen.pt)
        elif name in UNROUNDED:
            seen = replace(seen, ref=seen.golden)
        with np.errstate(all="ignore"):
            if not policy(reply.outs[0], seen):
                return False
            judges_lse = LSE_POLICIES.get(name)
            return not (judges_lse and reply.lses) or judges_lse(reply.lses[0], shown.at.lse)

    return passes


def _gpucheck(reply: Reply, shown: Shown, contract: Contract) -> bool:
    from gpucheck import assert_close

    dtype = getattr(torch, shown.x.dtype)
    try:
        with redirect_stdout(io.StringIO()):  # it prints a report
            assert_close(*(torch.from_numpy(t).to(dtype) for t in (reply.outs[0], shown.seen.ref)))
    except AssertionError:
        return False
    return True


def _gpuemu(reply: Reply, shown: Shown, contract: Contract) -> bool:
    from gpuemu.tolerances import get_recommended_tolerance

    t = get_recommended_tolerance(shown.x.dtype, "pytorch", "attention")
    off = np.abs(reply.outs[0] - shown.seen.golden)
    return bool((off <= t.atol + t.rtol * np.abs(shown.seen.golden)).all())


def _installed(package: str) -> bool:
    try:
        return importlib.metadata.version(package) == "0.1.0"
    except importlib.metadata.PackageNotFoundError:
        return False


CRITERIA: dict[str, Criterion] = {
    OUT: _within(False),
    AGREEMENT: _within(True),
    **{name: _of(name, policy) for name, policy in (POLICIES | MORE_POLICIES).items()},
}
RERUN = {REPEAT: 0, PADDING: 1}
"""Criteria that run the kernel again."""
if _installed("gpucheck"):
    CRITERIA[GPUCHECK] = _gpucheck
if _installed("gpuemu"):
    CRITERIA[GPUEMU] = _gpuemu


def gpucheck_inputs(dtype: str) -> Iterator[Inputs]:
    """Its own shapes (two axes: length and D), normal, uniform and those edge values that leave
    the result finite.
    """
    from gpucheck.fuzzing import edge_inputs, fuzz_shapes, random_inputs

    def call(*tensors: torch.Tensor) -> Inputs:
        q, k, v = (np.asarray(t.double().numpy())[None, None] for t in tensors)
        return Inputs(dtype, q, k, v)

    torch_dtype = getattr(torch, dtype)
    for shape in fuzz_shapes(2, max_size=513, n=30, seed=0):
        for kind in ("normal", "uniform"):
            if 0 not in shape:
                yield call(
                    *(
                        random_inputs(shape, torch_dtype, distribution=kind, seed=s)
                        for s in (0, 1, 2)
                    )
                )
    for _, t in edge_inputs((64, 64), torch_dtype, seed=0):
        if bool(t.isfinite().all()) and float(t.abs().max()) < 100:
            yield call(t, t, t)


def own(project: str, dtype: str) -> Iterator[Inputs]:
    yield from gpucheck_inputs(dtype) if project == GPUCHECK else OWN[project](dtype)


@dataclass(slots=True)
class Target:
    """A kernel, `fault` injected into it, or clean; with what rejected it so far.

    rejected: (set of inputs, criterion); fairly: those where the clean kernel passed.
    """

    kernel: str
    fault: str
    runner: InProcess
    contract: Contract
    subject: Subject
    rejected: set[tuple[str, str]] = field(default_factory=set)
    fairly: set[tuple[str, str]] = field(default_factory=set)
    laws: Counter[str] = field(default_factory=Counter)
    killed_by: str = ""

    @staticmethod
    def load(kernel: str, fault: str, space: Space) -> Target:
        runner = InProcess(spec(kernel, fault))
        target = runner.start()
        return Target(
            kernel, fault, runner, target.kernel.contract, Subject(runner, target, space)
        )  # fmt: skip

    def call(self, x: Inputs, number: int, **how: object) -> Reply:
        configs = self.subject.target.configs
        return self.runner.call(Call(x, configs[number % len(configs)], **how))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Result:
    """What rejected one target."""

    kernel: str
    fault: str
    dtype: str
    rejected: frozenset[tuple[str, str]]
    fairly: frozenset[tuple[str, str]]
    killed_by: str


def judged(
    target: Target, names: Iterable[str], shown: Shown, number: int
) -> dict[str, bool] | None:
    """Which of the criteria the target's result passes; None where it does not take the call."""
    x = shown.x
    large = x.visible.size * x.q.shape[3] > MOST_PRODUCTS
    if (large and target.kernel in SLOW) or target.subject.target.not_taken(x):
        return None
    names = [name for name in names if not (large and name in RERUN)]
    reply = target.call(x, number)
    if reply.status == "unsupported":
        return None
    if reply.status != "ok" or reply.problem_with_output:
        return dict.fromkeys(names, False)
    passed = {}
    for name in names:
        if name in RERUN:
            passed[name] = _same(target, x, number, name)
        else:
            passed[name] = CRITERIA[name](reply, shown, target.contract)
    return passed


def _same(target: Target, x: Inputs, number: int, name: str) -> bool:
    """Whether a second run gives the same bits: as it is, or with NaN where padding lies."""
    if name == REPEAT:
        reply = target.call(x, number, times=2)
        results = [reply] if len(reply.outs) == 2 else []
        pairs = [(r.outs[0], r.outs[1]) for r in results]
    else:
        padded = x.with_(layout="padded")
        runs = [target.call(padded, number, guard=guard) for guard in ("zeros", "nan")]
        if all(r.status == "unsupported" for r in runs):
            return True
        pairs = [(runs[0].outs[0], runs[1].outs[0])] if all(r.outs for r in runs) else []
    return bool(pairs) and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def run_set(
    name: str,
    criteria: Sequence[str],
    inputs: Iterable[Inputs],
    targets: Sequence[Target],
    bases: dict[str, Target],
) -> None:
    """Judge every target on a set of inputs, until each criterion has rejected it."""
    for number, x in enumerate(inputs):
        shown = Shown.of(x)
        clean: dict[str, dict[str, bool]] = {}
        for kernel, base in bases.items():
            clean[kernel] = judged(base, criteria, shown, number) or {}
            base.rejected |= {(name, c) for c, passed in clean[kernel].items() if not passed}
        for t in targets:
            alive = [c for c in criteria if (name, c) not in (t.fairly if t.fault else t.rejected)]
            passed = judged(t, alive, shown, number) if alive else None
            for criterion, passes in (passed or {}).items():
                if not passes:
                    t.rejected.add((name, criterion))
                    if clean.get(t.kernel, {}).get(criterion):
                        t.fairly.add((name, criterion))


def run_laws(problems: Sequence[Problem], targets: Sequence[Target]) -> None:
    """flashcheck as the gate runs it: beside agreement the two laws that lag behind most."""
    _, *others = laws()
    for t in targets:
        if (OURS, AGREEMENT) in t.rejected:
            t.rejected.add((OURS, ALL))
            t.killed_by = "agreement"
            continue
        for number, problem in enumerate(problems):
            configs = t.subject.target.configs
            case = t.subject.case(problem, configs[number % len(configs)])
            if t.subject.target.not_taken(case.inputs):
                continue
            turn = sorted(others, key=lambda law: t.laws[law.name])
            for law in [law for law in turn if law.applies(case)][: LAWS_PER_PROBLEM - 1]:
                t.laws[law.name] += 1
                check = law.check(case)
                if check.failed and check.verdict is not Verdict.UNSUPPORTED:
                    t.killed_by = t.killed_by or law.name
            if t.killed_by:
                t.rejected.add((OURS, ALL))
                break
    for t in targets:
        t.fairly |= {key for key in t.rejected if key[1] == ALL}


def job(
    kernel: str, dtype: str, faults: Sequence[str], clean: Sequence[str], count: int, seed: int
) -> list[Result]:
    """Some faults of a kernel, and some clean kernels, in one dtype."""
    torch.set_num_threads(1)
    base = InProcess(kernel)
    target = base.start()
    space = probe(base, target, (dtype,)).spaces[dtype]
    bases = {kernel: Target.load(kernel, "", space)}
    targets = [Target.load(kernel, fault, space) for fault in faults]
    targets += [Target.load(name, "", space) for name in clean]
    sets: dict[str, list[str]] = defaultdict(list)
    for name in (*CRITERIA, *RERUN):
        sets[PROJECT.get(name, name)].append(name)
    sets.pop(GPUEMU, None)
    for project, names in sets.items():
        run_set(project, names, own(project, dtype), targets, bases)
    problems = ours(space, len(target.configs), count, seed)
    inputs = (problem.inputs() for problem in problems)
    run_set(OURS, (*CRITERIA, *RERUN), inputs, targets, bases)
    run_laws(problems, targets)
    return [
        Result(
            t.kernel, t.fault, dtype, frozenset(t.rejected), frozenset(t.fairly), t.killed_by
        )
        for t in targets
    ]  # fmt: skip


def ours(space: Space, configs: int, count: int, seed: int) -> list[Problem]:
    """The first problems of a search; what follows the openings once for each configuration,
    which `Target.call` takes in turn.
    """
    first = filter(space.takes, openings(space, seed))
    then = [p for p in endings(space, seed) if space.takes(p) for _ in range(configs)]
    return [*first, *then, *drawn(space, count, seed)][:count]


def clean_kernels() -> list[str]:
    from importlib import import_module

    extremal = import_module("flashcheck.kernels.extremal").variants
    return [*USUAL, *(f"extremal[{name}]" for name in extremal)]


def run(kernels: Sequence[str], dtypes: Sequence[str], args: argparse.Namespace) -> list[Result]:
    faults: dict[tuple[str, str], list[str]] = defaultdict(list)
    for w in witnesses():
        faults[w.kernel, w.problem.dtype].append(w.fault)
    jobs = []
    for dtype in dtypes:
        for kernel in kernels:
            names = faults[kernel, dtype][:: args.every]
            clean = clean_kernels() if kernel == kernels[0] else []
            shards = -(-4 * args.jobs // (len(dtypes) * len(kernels)))
            jobs += [
                (kernel, dtype, names[i::shards], clean[i::shards], args.problems, args.seed)
                for i in range(shards)
            ]
    found = []
    with ProcessPoolExecutor(args.jobs, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(job, *one) for one in jobs]):
            found += done.result()
            print(f"{len(found)} kernels done", file=sys.stderr, flush=True)
    return found


# -- the page -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """One criterion on one set of inputs: shares of faults, and numbers of clean kernels: usual
    ones, and those at the edge of the contract.
    """

    killed: float
    fairly: float
    usual: int
    edge: int

    @property
    def cells(self) -> str:
        fair = f" ({self.fairly:.0%})" if round(self.fairly, 2) < round(self.killed, 2) else ""
        return f"{self.killed:.0%}{fair} | {self.usual} + {self.edge}".replace("%", " %")


def row(results: Sequence[Result], name: str, criterion: str) -> Row:
    broken = [r for r in results if r.fault]
    key = name, criterion
    return Row(
        sum(key in r.rejected for r in broken) / len(broken),
        sum(key in r.fairly for r in broken) / len(broken),
        sum(key in r.rejected for r in results if not r.fault and r.kernel in USUAL),
        sum(key in r.rejected for r in results if not r.fault and r.kernel not in USUAL),
    )


def table(results: Sequence[Result], dtype: str) -> None:
    usual = sum(not r.fault and r.kernel in USUAL for r in results)
    edge = sum(not r.fault for r in results) - usual
    broken = [r for r in results if r.fault]
    faults = f"{len({r.fault for r in broken})} faults, {len(broken)} broken kernels"
    print(f"\n## {dtype}: {faults}, {usual} + {edge} clean ones\n")
    print("| criterion | own inputs: killed | clean rejected | ours: killed | clean rejected |")
    print("|---|---:|---:|---:|---:|")
    for criterion in (ALL, *CRITERIA, *RERUN):
        project = PROJECT.get(criterion, criterion)
        mine = "– | –"
        if criterion not in (ALL, GPUEMU):
            mine = row(results, project, criterion).cells
        print(f"| {criterion} | {mine} | {row(results, OURS, criterion).cells} |")


def _faults(names: Iterable[str]) -> str:
    listed = sorted(set(names))
    shown = 0 < len(listed) <= 20
    return f"{len(listed)}" + (": " + ", ".join(f"`{n}`" for n in listed) if shown else "")


def _as_good(results: Sequence[Result], criteria: Iterable[str]) -> str:
    """Those that kill as many on our inputs as the bound of what they judge."""
    found = []
    for c in criteria:
        own_bound = AGREEMENT if c in LSE_POLICIES else OUT
        share = row(results, OURS, c).fairly
        if share >= row(results, OURS, own_bound).killed - 0.01:
            found.append(f"{c} {share:.0%}".replace("%", " %"))
    return ", ".join(found) or "none"


def readings(results: Sequence[Result]) -> None:
    """What the table says, in sentences that hold for whatever was measured."""
    broken = [r for r in results if r.fault]
    peers = [c for c in (*CRITERIA, *RERUN) if c not in (OUT, AGREEMENT)]
    sound = [c for c in peers if not row(results, OURS, c).usual]

    def by(r: Result, criteria: Iterable[str], where: str | None = None) -> bool:
        return any((where or PROJECT.get(c, c), c) in r.fairly for c in criteria)

    flashcheck = [r for r in broken if (OURS, ALL) in r.rejected]
    print()
    print(
        "- Killed by flashcheck and by no other criterion on its own inputs: "
        + _faults(r.fault for r in flashcheck if not by(r, peers))
    )
    print(
        "- The same, where the others have our inputs: "
        + _faults(r.fault for r in flashcheck if not by(r, peers, OURS))
    )
    print(
        "- The same, of those that reject no usual kernel on our inputs: "
        + _faults(r.fault for r in flashcheck if not by(r, sound, OURS))
    )
    missed = [r for r in broken if (OURS, ALL) not in r.rejected]
    print("- Not killed by flashcheck in so few problems: " + _faults(r.fault for r in missed))
    print(
        "  - of these killed by another criterion, on our inputs or its own: "
        + _faults(r.fault for r in missed if by(r, peers) or by(r, peers, OURS))
    )
    print(
        "- On our inputs as good as flashcheck's bound (to a percent; with lse where the criterion "
        f"judges it), and no usual kernel rejected: {_as_good(results, sound)}"
    )
    print(
        "- As good, if somebody says for each of our inputs whether a correct kernel passes: "
        + _as_good(results, peers)
    )
    alone = {c: row(results, PROJECT.get(c, c), c).fairly for c in peers}
    best = sorted(peers, key=lambda c: -alone[c])[:3]
    shares = (f"{c} {alone[c]:.0%}".replace("%", " %") for c in best)
    print(f"- Best on their own inputs: {', '.join(shares)}")
    fair = {c: row(results, OURS, c).fairly for c in peers}
    simple = [c for c in peers if c not in RERUN and c != GPUEMU]
    own_share, ours_share = (np.median([of[c] for c in simple]) for of in (alone, fair))
    text = (
        "- Inputs or criterion: the bound of out kills "
        f"{row(results, PROJECT[OUT], OUT).killed:.0%} "
        f"on flash-attention's inputs, flash-attention's own criterion "
        f"{alone['flash-attention']:.0%}; on ours {row(results, OURS, OUT).killed:.0%} and "
        f"{fair['flash-attention']:.0%}. The median of the others goes from {own_share:.0%} to "
        f"{ours_share:.0%}, where correct kernels say which inputs to leave out"
    )
    print(text.replace("%", " %"))
    laws_needed = Counter(r.killed_by for r in flashcheck if r.killed_by != "agreement")
    said = ", ".join(f"{name} {n}" for name, n in laws_needed.most_common())
    print(f"- Killed by another property than agreement: {said or 'none'}")


NOTES = """
- flashcheck's inputs are ours: it has none of its own beside them. Its bound stands in the columns
  of own inputs on those of flash-attention, which separates the criterion from the inputs.
- `out alone` judges out, as most criteria do; `agreement` judges lse too; `flashcheck` adds on each
  problem the two other properties whose turn it is, as the gate does.
- The criteria are written for half precision, most of them; float32 is our question, not theirs.
- `pt`, the plain implementation, is one for all: torch's operators in the dtype. The reference is
  float64, rounded to the dtype where a project's is, which is kinder than theirs (float32, torch's
  SDPA, another kernel); but `pt` where a project compares with just that (Triton's tutorial, vLLM).
- Clean kernels are counted apart: usual ones (NumPy, PyTorch, torch's SDPA) + those of
  kernels/extremal.py, each of which spends one allowance of our contract in full. No project
  promises to pass these; on its own inputs the first number is the false alarms.
- A clean kernel that is rejected on our inputs says that the criterion cannot go with such
  inputs, not that the project's tests fail.
- A project that lacks an option, as flash-attention lacks masks, has no inputs on which a fault of
  that option would show; and peers test options that the kernel contract here lacks, of which no
  fault is in the set.
- The faults were written for this project, by people who knew flashcheck and not these criteria.
"""

PACKAGES = """
## gpucheck 0.1.0 and gpuemu 0.1.0, as they come from PyPI

gpucheck runs without a GPU: its `assert_close` with the defaults of the dtype, on its own shapes
(two axes, to 513) and values. gpuemu's package is a client: shapes and values come from a daemon
that is no part of it (without one `Client().ping()` times out), so that its own inputs cannot be
had; its `get_recommended_tolerance(dtype, "pytorch", "attention")` is judged on ours. They are
installed beside the environment, with `pip install --target DIR gpucheck==0.1.0 gpuemu==0.1.0`
and DIR on PYTHONPATH. Here: gpucheck {gpucheck}, gpuemu {gpuemu}.
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--problems", type=int, default=100, help="how many of ours")
    parser.add_argument("--every", type=int, default=1, help="take one fault in so many")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kernels", default="fp32_stats", help="K[,K]: to break")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    args = parser.parse_args()
    page(run(args.kernels.split(","), args.dtypes.split(","), args), args)


def page(found: Sequence[Result], args: argparse.Namespace) -> None:
    head(__doc__)
    some = "" if args.every == 1 else f", one fault in {args.every}"
    print(f"N = {args.problems} problems, seed {args.seed}, faults in {args.kernels}{some}.\n")
    print(NOTES.strip())
    for dtype in args.dtypes.split(","):
        results = [r for r in found if r.dtype == dtype]
        table(results, dtype)
        readings(results)
    packages = {
        p: "was there" if _installed(p) else "was not there" for p in ("gpucheck", "gpuemu")
    }
    print(PACKAGES.format(ping="no daemon answers", **packages))
    print("## Own inputs\n")
    for project, calls in OWN.items():
        print(f"- {project}: {' '.join((calls.__doc__ or '').split())}")
    print("\n## Environment\n")
    print("\n".join(f"    {line}" for line in environment.lines(environment.collect(None))))


if __name__ == "__main__":
    main()
