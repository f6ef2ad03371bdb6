"""Reduction: captured tensors cut down to the part on which a kernel still fails.

Tensors of a model follow no recipe, so they are sliced: one head, one query, then keys left out
by halves from either end, options and channels. Every value that remains is the model's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from flashcheck.examples import of_tensors
from flashcheck.inputs import Inputs
from flashcheck.law import Law, Subject
from flashcheck.problem import Problem
from flashcheck.verdict import Check

MAX_RUNS = 150
MAX_SECONDS = 30.0

Cut = Callable[[Inputs, slice], Inputs]


def reduce_captured(
    subject: Subject,
    law: Law,
    problem: Problem,
    inputs: Inputs,
    config: str | None,
    check: Check,
    *,
    max_runs: int = MAX_RUNS,
    max_seconds: float = MAX_SECONDS,
) -> tuple[Problem, Inputs, Check]:
    """The smallest part found of captured `inputs` on which `law` fails as in `check`.

    `problem` is the outline of `inputs` (`examples.of_tensors`) and `check` the failure of
    `law` on them. Each part is judged anew, with an exact result of its own, and counts where
    verdict and symptom are those of `check`. At most `max_runs` parts are tried, for
    `max_seconds`. Returns outline, tensors and failure of the part: the arguments themselves
    where no smaller one fails.
    """
    deadline = time.monotonic() + max_seconds
    reducer = _Reducer(subject, law, problem, inputs, config, check, max_runs, deadline)
    with suppress(_Spent):
        reducer.run()
    return reducer.problem, reducer.inputs, reducer.check


class _Spent(Exception):
    """The runs or the seconds are used up."""


@dataclass(eq=False)
class _Reducer:
    """`problem`, `inputs` and `check` are the smallest failure so far."""

    subject: Subject
    law: Law
    problem: Problem
    inputs: Inputs
    config: str | None
    check: Check
    runs: int
    deadline: float

    def run(self) -> None:
        before = None
        while self.inputs is not before:
            before = self.inputs
            self._first(self._one_head())
            self._first(self._one_query())
            self._shorten(3, _queries)
            self._shorten(4, _keys)
            self._first(self._plainer())
            self._first(self._fewer_channels())
            self._first(self._fewer_values())

    def _fails(self, x: Inputs) -> bool:
        """Take `x` instead, if it fails in the same way."""
        if self.runs <= 0 or time.monotonic() > self.deadline:
            raise _Spent
        self.runs -= 1
        problem, captured = of_tensors(x, self.problem.seed)
        case = self.subject.case(problem, self.config, captured)
        if not self.law.applies(case):
            return False
        check = self.law.check(case)
        if (check.verdict, check.symptom) != (self.check.verdict, self.check.symptom):
            return False
        self.problem, self.inputs, self.check = problem, captured, check
        return True

    def _first(self, parts: Iterator[Inputs]) -> None:
        """Take the first part that fails."""
        any(map(self._fails, parts))

    def _shorten(self, axis: int, cut: Cut) -> None:
        """Leave out half of an axis of `shape`, then a quarter, ..., at its end or its start."""
        step = self.inputs.shape[axis] // 2
        while step:
            n = self.inputs.shape[axis]
            halves = (slice(n - step), slice(step, n)) if step < n else ()
            if not any(self._fails(cut(self.inputs, part)) for part in halves):
                step //= 2

    def _worst(self) -> tuple[int, ...]:
        """(b, h, query, channel) of the worst element; zeros where none is to blame."""
        index = () if self.check.worst is None else self.check.worst.index
        return (*index, 0, 0, 0, 0)[:4]

    def _one_head(self) -> Iterator[Inputs]:
        """Each batch and head alone, the worst first."""
        x = self.inputs
        heads = [(b, h) for b in range(x.shape[0]) for h in range(x.shape[1])]
        worst = self._worst()
        if len(heads) > 1:
            for b, h in dict.fromkeys([(worst[0], worst[1]), *heads]):
                yield _head(x, b, h)

    def _one_query(self) -> Iterator[Inputs]:
        """The worst query alone; of a causal call, with the keys that it sees."""
        x, (b, h, i, _) = self.inputs, self._worst()
        if x.shape[3] == 1:
            return
        if x.is_causal:
            bottom_right = self.subject.target.kernel.causal_alignment == "bottom_right"
            seen = int(x.with_(bottom_right=bottom_right).visible[b, h, i].sum())
            yield _queries(_keys(x.with_(is_causal=False), slice(seen)), slice(i, i + 1))
        yield _queries(x, slice(i, i + 1))

    def _plainer(self) -> Iterator[Inputs]:
        """Without options: all of them, or one."""
        x = self.inputs
        no_mask = {"mask": None, "mask_dtype": "bool"} if x.mask is not None else {}
        causal = {"is_causal": False} if x.is_causal else {}
        scale = {"scale": None} if x.scale is not None and self.subject.space.scale_none else {}
        memory = {"layout": "contiguous", "passed": frozenset[str]()}
        memory = memory if x.layout != "contiguous" or x.passed else {}
        further: dict[str, dict[str, Any]] = {
            "window_size": {"window": (-1, -1)}, "softcap": {"softcap": 0.0},
            "alibi_slopes": {"alibi_slopes": None}, "sinks": {"sinks": None},
            "num_splits": {"num_splits": 1},
        }  # fmt: skip
        one: list[dict[str, Any]] = [no_mask, causal, scale, memory]
        one += [changes for name, changes in further.items() if name in x.used]
        for changes in (dict(chain.from_iterable(c.items() for c in one)), *one):
            if changes:
                yield x.with_(**changes)

    def _fewer_channels(self) -> Iterator[Inputs]:
        """The first or the last channels of q and k; of v too where the kernel wants it."""
        x, space = self.inputs, self.subject.space
        d = x.shape[5]
        for size in sorted(set(space.head_dims)):
            for part in (slice(size), slice(d - size, d)) if size < d else ():
                y = x.with_(q=x.q[..., part], k=x.k[..., part])
                yield y if space.dim_v_differs else y.with_(v=x.v[..., part])

    def _fewer_values(self) -> Iterator[Inputs]:
        """The worst channel of v, with as few others as the kernel takes."""
        x, space, channel = self.inputs, self.subject.space, self._worst()[3]
        for size in sorted(set(space.head_dims)) if space.dim_v_differs else ():
            if size < x.shape[6]:
                first = min(channel, x.shape[6] - size)
                yield x.with_(v=x.v[..., first : first + size])


def _head(x: Inputs, b: int, h: int) -> Inputs:
    """One batch and head, with the key head that it reads."""
    at, q_at = slice(b, b + 1), slice(h, h + 1)
    kv = h // x.heads_per_kv
    kv_at = slice(kv, kv + 1)
    mask = x.mask
    if mask is not None and mask.ndim > 2:
        mask = mask[..., q_at, :, :] if mask.shape[-3] > 1 else mask
        mask = mask[at] if mask.ndim == 4 and len(mask) > 1 else mask
    return x.with_(
        q=x.q[at, q_at], k=x.k[at, kv_at], v=x.v[at, kv_at], mask=mask, enable_gqa=False,
        alibi_slopes=None if x.alibi_slopes is None else x.alibi_slopes[q_at],
        sinks=None if x.sinks is None else x.sinks[q_at],
    )  # fmt: skip


def _queries(x: Inputs, part: slice) -> Inputs:
    mask = x.mask
    if mask is not None and mask.ndim > 1 and mask.shape[-2] > 1:
        mask = mask[..., part, :]
    return x.with_(q=x.q[:, :, part], mask=mask)


def _keys(x: Inputs, part: slice) -> Inputs:
    mask = x.mask
    if mask is not None and mask.shape[-1] > 1:
        mask = mask[..., part]
    return x.with_(k=x.k[:, :, part], v=x.v[:, :, part], mask=mask)
