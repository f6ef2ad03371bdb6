"""Models: which fault of kernels/faults explains a wrong result.

A model is the kernel of FP32 statistics (kernels/fp32_stats) with one fault injected, in one size
of blocks and, where that explains nothing, in its other forms. It explains a wrong result if it
gives the same one: elementwise within the two bounds, and off by as much. Many faults look alike
on a problem that was shrunk, so that those left are compared with the kernel on further
problems, on which they have to agree as well, whether right or wrong. Where several remain,
nothing is said, and neither is it about a kernel that does something which no model does.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from flashcheck import fault
from flashcheck.arena import Guard
from flashcheck.bounds import bound
from flashcheck.call import Call, Reply
from flashcheck.case import BadReply, Case
from flashcheck.explanation import phrases, titles
from flashcheck.explanation.clock import Clock
from flashcheck.explanation.forms import FORMS
from flashcheck.explanation.further import problems
from flashcheck.explanation.weights import Recorder
from flashcheck.formats import FLOAT8, FORMATS, Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract, Kernel
from flashcheck.law import Law
from flashcheck.legality import why_not
from flashcheck.oracle.float64 import Attention
from flashcheck.strategies import forms_of
from flashcheck.verdict import Check, Verdict
from flashcheck.worker import InProcess

MODEL = "fp32_stats"

SECONDS, WALL = 6.0, 12.0
"""For one failure, at most, of this process and by the clock, besides loading the models once."""

UNEXPLAINED = 0.25
"""Share of an error that a model may leave: two kernels round differently."""

ALWAYS = 4
"""Further problems on which the kernel is run even where every model is right."""

PROOF, ENOUGH = 2, 5
"""Further problems with a wrong result that have to be, and that suffice to be, explained."""

FEW, AHEAD = 16, 5
"""So few models are run on so many further problems, to choose the one that tells most."""

BLOCKS = ((64, 64), (64, 16), (64, 32), (128, 128))
"""BLOCK_M and BLOCK_N that are tried where the kernel's configuration does not name them."""

ALL_ROWS = 1 << 20
"""BLOCK_M of the form that has whole rows."""


@dataclass(frozen=True, slots=True)
class Model:
    """A fault, a configuration of the kernel that it is injected in, and that kernel's form."""

    fault: str
    blocks: str
    form: str

    def run(self, asked: Asked, fresh_output_nan: bool = True) -> Reply:
        runner = _runner(self.fault, self.form)
        assert runner is not None
        return runner.call(
            Call(asked.x, self.blocks, asked.guard, fresh_output_nan=fresh_output_nan)
        )


@cache
def _parameters() -> Collection[str]:
    attention = importlib.import_module(f"{fault.KERNELS}.{MODEL}").attention
    return tuple(inspect.signature(attention).parameters)


@cache
def _runner(name: str, form: str) -> InProcess | None:
    """The model with a fault; None where it cannot be injected."""
    try:
        attention = fault.load(MODEL, name, form, FORMS[form]).attention
    except fault.FaultError:
        return None
    return InProcess(Kernel(attention, configs=_CONFIGS))


_CONFIGS: dict[str, dict[str, Any]] = {}
"""Those that were asked for, shared by all models."""


def models(case: Case, form: str) -> list[Model]:
    """Every fault, in the blocks that the kernel's configuration names, or else in several."""
    given = dict((case.kernel.configs or {}).get(case.config or "", {}))
    given = {name: value for name, value in given.items() if name in _parameters()}
    blocks: dict[str, None] = {}
    for m, n in BLOCKS:
        keywords = {"BLOCK_M": ALL_ROWS if form == "rows" else m, "BLOCK_N": n, **given}
        name = ", ".join(f"{key}={value}" for key, value in keywords.items())
        _CONFIGS[name] = keywords
        blocks[name] = None
    names = [name for name in fault.names() if _runner(name, form) is not None]
    return [Model(name, size, form) for name in names for size in blocks]


@dataclass(frozen=True, eq=False)
class Asked:
    """A call, and what may be said of its result.

    at: the exact result; out [B, Hq, Lq, Dv], lse [B, Hq, Lq]: how far a right one may be from
    `at`, infinite where nothing is promised; twice: how far two kernels may be apart.
    """

    case: Case
    x: Inputs
    guard: Guard
    at: Attention
    out: Array
    lse: Array
    apart: tuple[Array, Array]

    @staticmethod
    def of(case: Case, x: Inputs, guard: Guard) -> Asked:
        at, own = case.attention(x), case.exact_bound(x)
        model = own
        if case.kernel.contract != Contract():
            model = bound(x, at, Contract(), "cpu")
        rows = case.judged_rows(x)
        return Asked(
            case, x, guard, at,
            np.where(rows[..., None], own.out + at.out_radius, np.inf),
            np.where(rows, own.lse + at.lse_radius, np.inf),
            (own.out + model.out, own.lse + model.lse),
        )  # fmt: skip

    def wrong(self, reply: Reply) -> tuple[Bools, Bools]:
        """Elements of out and of lse that are wrong beyond doubt."""
        out = _beyond(reply.outs[0], self.at.out, self.out)
        if not reply.lses:
            return out, np.zeros(out.shape[:3], bool)
        return out, _beyond(reply.lses[0], self.at.lse, self.lse)

    def kernel(self, fresh_output_nan: bool = True) -> Reply | None:
        """What the kernel gives."""
        try:
            return self.case.run(self.x, guard=self.guard, fresh_output_nan=fresh_output_nan)
        except BadReply:
            return None

    def shows(self, reply: Reply) -> bool:
        """Whether anything is wrong with a result."""
        return (
            not reply.outs
            or bool(reply.modified)
            or any(bool(wrong.any()) for wrong in self.wrong(reply))
        )

    def tells(self, reply: Reply) -> bool:
        """Whether a wrong result is one of many: no NaN, or not everywhere."""
        if reply.modified:
            return True
        parts = zip(self.wrong(reply), (*reply.outs, *reply.lses), strict=False)
        return any(
            bool(wrong.any()) and not bool((wrong & np.isnan(got)).all()) for wrong, got in parts
        )

    def explains(self, model: Reply, kernel: Reply) -> bool:
        """Whether a model gives what the kernel gives."""
        if not model.outs or not set(kernel.modified) <= set(model.modified):
            return False
        wrong = [a | b for a, b in zip(self.wrong(model), self.wrong(kernel), strict=True)]
        at, x = self.at, self.x
        unit = FORMATS[x.dtype].unit_roundoff
        stat = FORMATS["float64" if x.dtype == "float64" else "float32"].unit_roundoff
        n = x.k.shape[2] + x.k.shape[3]
        got = kernel.outs[0]
        # A wrong result may be larger than the right one, and rounded as coarsely.
        size = np.where(np.isfinite(got), np.abs(got), 0.0).max(-1, keepdims=True)
        usual = np.maximum(at.abs_out.max(-1, keepdims=True), 1e-300)
        slack = self.apart[0] * np.maximum(1.0, size / usual) + 4 * unit * size
        slack = slack + np.where(wrong[0], 4 * n * stat * np.abs(x.v).max(initial=0.0), 0.0)
        judged = np.isfinite(self.out), np.isfinite(self.lse)
        if not _same(model.outs[0], got, at.out, slack, wrong[0], judged[0]):
            return False
        if not kernel.lses:
            return True
        size = np.where(np.isfinite(kernel.lses[0]), np.abs(kernel.lses[0]), 0.0)
        slack = self.apart[1] + 4 * stat * (size + n)
        return _same(model.lses[0], kernel.lses[0], at.lse, slack, wrong[1], judged[1])


def _beyond(got: Array, exact: Array, allowed: Array) -> Bools:
    with np.errstate(invalid="ignore"):
        right = (got == exact) | (np.abs(got - exact) <= allowed)
    return np.asarray(~(right | np.isinf(allowed)))


def _same(
    model: Array, kernel: Array, exact: Array, slack: Array, wrong: Bools, judged: Bools
) -> bool:
    """Whether the elements agree, and of the error of those that are wrong little is left."""
    finite = np.isfinite(model) & np.isfinite(kernel)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where((model == kernel) | (np.isnan(model) & np.isnan(kernel)), 0.0, np.inf)
        apart = np.where(finite, np.abs(model - kernel), apart)
        if (judged & (apart > slack)).any():
            return False
        error = np.maximum(np.abs(model - exact), np.abs(kernel - exact))[wrong & finite]
    return bool(apart[wrong & finite].sum() <= UNEXPLAINED * error.sum())


@dataclass(frozen=True, slots=True)
class Likely:
    """What probably is wrong with a kernel.

    faults: the name of one in kernels/faults, or of two of a kind that nothing told apart; rise:
    where the maximum rises, for a fault of its rescale, or ""; wrong: how many wrong elements
    the model reproduces; others: further problems on which it gives the same wrong result too;
    x: the call.
    """

    faults: tuple[str, ...]
    x: Inputs
    rise: str
    wrong: int
    others: int

    @property
    def sentence(self) -> str:
        pages = [fault.read(name) for name in self.faults]
        told = ", or: ".join(titles.title(page, self.x).rstrip(".") for page in pages)
        files = phrases.join([f"kernels/faults/{page.name}" for page in pages], "or")
        same = f"all {self.wrong:,} wrong elements" if self.wrong > 1 else "the wrong element"
        return (
            f"{told}{self.rise} (as in {files}, which gives {same} here and the same wrong "
            f"results on {self.others} other problems)"
        )


def likely(case: Case, law: Law, check: Check, without: Collection[str] = ()) -> Likely | None:
    """The fault behind a failed `check` of `law` on `case`; None where none is sure.

    `without` names faults that are not tried.
    """
    if check.verdict is not Verdict.VIOLATION or case.inputs.dtype in FLOAT8:
        return None
    found = _wrong(case, law)
    if found is None:
        return None
    first, reply, count = found
    spent = Clock(SECONDS, WALL)
    left: list[Model] = []
    for form in FORMS:
        with spent.stopped():
            tried = [m for m in models(case, form) if m.fault not in without]
        left += [m for m in tried if not spent() and first.explains(m.run(first), reply)]
        left, others = _narrowed(case, first, left, spent)
        if spent():  # what would have told another fault may not have been tried
            return None
        if others >= PROOF:
            left = _unwritten_alike(first, left)
            of = case.space.options
            left = [m for m in left if titles.possible(fault.read(m.fault), of)] or left
        names = tuple(dict.fromkeys(m.fault for m in left))
        pages = [fault.read(name) for name in names]
        kinds = {page.kind for page in pages}
        fit = all(titles.fits(page, first.x) for page in pages)
        if others >= PROOF and 1 <= len(names) <= 2 and len(kinds) == 1 and fit:
            rise = "" if len(names) > 1 else _rise(first, reply, left[0])
            return Likely(names, first.x, rise, count, others)
    return None


def _wrong(case: Case, law: Law) -> tuple[Asked, Reply, int] | None:
    """The first call with a wrong result, that result, and how many of its elements are wrong."""
    for asked in _calls(case, law):
        reply = asked.kernel()
        if reply is not None and asked.shows(reply):
            return asked, reply, sum(int(wrong.sum()) for wrong in asked.wrong(reply))
    return None


def _narrowed(
    case: Case, first: Asked, left: list[Model], spent: Callable[[], bool]
) -> tuple[list[Model], int]:
    """The models that explain further problems too, and how many of these come out wrong."""
    others = 0
    source = _further(case, first)
    pool: list[Asked] = []
    answers: dict[tuple[Asked, Model], Reply] = {}
    for number in itertools.count():
        done = others >= ENOUGH and len({m.fault for m in left}) == 1
        if not left or done or spent():
            break
        # The next one, or of the next few the one that tells most models apart.
        wide = 1 if number < 2 or len(left) > FEW else AHEAD
        pool += itertools.islice(source, max(0, wide - len(pool)))
        if not pool:
            break
        for asked, m in itertools.product(pool[:wide], left):
            if spent():
                return left, others
            if (asked, m) not in answers:
                answers[asked, m] = m.run(asked)
        asked = max(pool[:wide], key=lambda a: len({_outline(answers[a, m]) for m in left}))
        pool.remove(asked)
        shown = any(asked.shows(answers[asked, m]) for m in left)
        own = asked.kernel() if shown or number < ALWAYS else None
        if own is not None:
            left = [m for m in left if asked.explains(answers[asked, m], own)]
            others += asked.tells(own) or (asked.shows(own) and _unwritten(asked.kernel))
    return left, others


def _rise(asked: Asked, reply: Reply, model: Model) -> str:
    """Which block raises the maximum most in the row that is most wrong, for a missed rescale."""
    page = fault.read(model.fault)
    if "rescale" not in page.title + page.wrong and "alpha" not in page.wrong:
        return ""
    wrong = asked.wrong(reply)
    row = np.argwhere(wrong[0].any(-1) | wrong[1])
    if not len(row):
        return ""
    b, h, i = (int(n) for n in row[0])
    scores = np.where(asked.x.visible, asked.at.s, -np.inf)[b, h, i]
    size = _CONFIGS[model.blocks]["BLOCK_N"]
    tops = np.array([scores[n : n + size].max() for n in range(0, scores.size, size)])
    if _CONFIGS[model.blocks].get("order") == "reverse":
        tops = tops[::-1]
    before = np.maximum.accumulate(tops)[:-1]
    with np.errstate(invalid="ignore"):
        rises = np.where(np.isfinite(before), tops[1:] - before, 0.0)
    if not rises.size or rises.max() <= 0:
        return ""
    n = int(rises.argmax())
    name = phrases.row_name(asked.at.lse.shape, (b, h, i))
    factor = math.exp(-float(rises[n]))
    return (
        f": block {n + 2} of {size} key{'s' if size > 1 else ''} raises the maximum of {name} by "
        f"{phrases.short(float(rises[n]))}, and exp(m_old - m_new) = {phrases.short(factor)}"
    )


def _outline(reply: Reply) -> bytes:
    """The same for two replies that are about the same."""
    with np.errstate(all="ignore"):
        return b"".join((np.round(a, 3) + 0.0).tobytes() for a in (*reply.outs, *reply.lses))


def _unwritten_alike(first: Asked, left: list[Model]) -> list[Model]:
    """Those that leave elements unwritten if the kernel does, or else compute NaN as it does."""
    own = _unwritten(first.kernel)
    return [m for m in left if _unwritten(partial(m.run, first)) == own]


def _unwritten(run: Callable[..., Reply | None]) -> bool:
    """Whether there is NaN only where new tensors are filled with it."""
    for _ in range(3):  # memory may hold NaN by chance
        filled, plain = run(fresh_output_nan=True), run(fresh_output_nan=False)
        if filled is None or plain is None or not filled.outs or not plain.outs:
            return False
        if (np.isnan(filled.outs[0]) & ~np.isnan(plain.outs[0])).any():
            return True
    return False


def _calls(case: Case, law: Law) -> Iterator[Asked]:
    """The calls that a law makes, the problem's own first."""
    yield Asked.of(case, case.inputs, "zeros")
    if law.name == "agreement":
        return
    recorder = Recorder(case.runner)
    again = Case(
        recorder, case.target, case.problem, case.config, case.device, case.space, case.captured
    )  # fmt: skip
    law.check(again)
    done = [(again.inputs, "zeros")]
    for call in recorder.calls:
        if not any(call.inputs is x and call.guard == guard for x, guard in done):
            done.append((call.inputs, call.guard))
            yield Asked.of(again, call.inputs, call.guard)


def _further(case: Case, first: Asked) -> Iterator[Asked]:
    """Problems like the failing call, then such as a search begins with; legal ones."""
    # The failing call may itself be none that the kernel was tried with: that is no reason.
    p, space = case.problem, case.space
    space = replace(
        space, head_dims=(*space.head_dims, p.dim), mask_forms=space.mask_forms | forms_of(p),
        dim_v_differs=space.dim_v_differs or p.dim_v != p.dim, pages=(*space.pages, p.page),
    )  # fmt: skip
    allowed = "", why_not(p, case.inputs, space)
    for problem in problems(case, first.x):
        other = Case(case.runner, case.target, problem, case.config, case.device, case.space)
        if case.target.not_taken(other.inputs):
            continue
        if why_not(problem, other.inputs, space) in allowed:
            yield Asked.of(other, other.inputs, first.guard)
