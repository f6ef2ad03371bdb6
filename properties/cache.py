"""A cache of pages that lives: sequences come, grow, fork, roll and go, and every decoding step
is exact.

A page that a sequence gave back holds NaN where the kernel is judged, and so does every page
that no sequence has; what lies behind the last key of a page is whatever was there before.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import Pages
from flashcheck.law import Subject
from flashcheck.problem import Problem
from flashcheck.verdict import Verdict

from .agreement import agreement
from .poison_memory import poison_memory

POOL = 12
"""Pages in all."""

SEQUENCES = 3
"""Most sequences at a time."""

STALE = 2.0**15
"""What a page holds before anything was written to it."""

_any = st.integers(0, 63)


@dataclass
class Sequence:
    """The pages of a sequence, in order, and how many keys they hold."""

    pages: list[int] = field(default_factory=list)
    length: int = 0


class Cache(RuleBasedStateMachine):
    """Pool [pages, page size, Hkv, D or Dv] and the sequences that have pages of it.

    Sequences may share pages that are full, as those with a common beginning do.
    """

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject = subject
        self.sequences: list[Sequence] = []

    @initialize(page=_any, seed=st.integers(0, 2**16))
    def allot(self, page: int, seed: int) -> None:
        space = self.subject.space
        small = [size for size in space.pages if size <= 16] or space.pages[:1]
        self.size = small[page % len(small)]
        self.dim = min(space.head_dims, key=lambda d: (abs(d - 16), d))
        self.heads = 4 if "enable_gqa" in space.options else 2
        self.kv_heads = 2
        self.random = np.random.default_rng(seed)
        self.keys, self.values = (
            np.full((POOL, self.size, self.kv_heads, self.dim), STALE) for _ in "kv"
        )
        self.sequences = [Sequence()]

    @property
    def free(self) -> list[int]:
        used = {page for s in self.sequences for page in s.pages}
        return [page for page in range(POOL) if page not in used]

    def pick(self, which: int) -> Sequence:
        return self.sequences[which % len(self.sequences)]

    def page(self) -> int:
        """Any page that is free."""
        return int(self.random.choice(self.free))

    def normal(self, *shape: int) -> Array:
        return FORMATS[self.subject.space.dtype].round(self.random.normal(size=shape))

    def append(self, s: Sequence, tokens: int) -> None:
        """As many of the tokens as there is room for."""
        for _ in range(tokens):
            if s.length % self.size == 0:
                if not self.free:
                    return
                s.pages.append(self.page())
            at = s.pages[-1], s.length % self.size
            self.keys[at], self.values[at] = self.normal(2, self.kv_heads, self.dim)
            s.length += 1

    @precondition(lambda self: len(self.sequences) < SEQUENCES)
    @rule()
    def admit(self) -> None:
        self.sequences.append(Sequence())

    @precondition(lambda self: self.sequences)
    @rule(which=_any, tokens=st.sampled_from((1, 7, 16, 33)))
    def prefill(self, which: int, tokens: int) -> None:
        self.append(self.pick(which), tokens)

    @precondition(lambda self: self.sequences)
    @rule(which=_any)
    def evict(self, which: int) -> None:
        self.sequences.remove(self.pick(which))

    @precondition(lambda self: 0 < len(self.sequences) < SEQUENCES and self.free)
    @rule(which=_any)
    def fork(self, which: int) -> None:
        """Full pages are shared; the last one, which will be written to, is copied."""
        s = self.pick(which)
        pages = s.pages[: s.length // self.size]
        if s.length % self.size:
            pages.append(self.page())
            for pool in (self.keys, self.values):
                pool[pages[-1]] = pool[s.pages[-1]]
        self.sequences.append(Sequence(pages, s.length))

    @precondition(lambda self: any(s.length > self.size for s in self.sequences))
    @rule(which=_any)
    def roll(self, which: int) -> None:
        """The oldest page leaves the window that a sequence keeps."""
        long = [s for s in self.sequences if s.length > self.size]
        s = long[which % len(long)]
        del s.pages[0]
        s.length -= self.size

    @rule()
    def reorder(self) -> None:
        """Pages move within the pool."""
        order = self.random.permutation(POOL)
        self.keys[order], self.values[order] = self.keys.copy(), self.values.copy()
        for s in self.sequences:
            s.pages = [int(order[page]) for page in s.pages]

    @precondition(lambda self: self.sequences)
    @rule(config=_any)
    def generate(self, config: int) -> None:
        """A token more in every sequence, and its query."""
        for s in self.sequences:
            self.append(s, 1)
        self.judge(config)

    @precondition(lambda self: self.sequences)
    @rule(
        config=_any, queries=st.sampled_from((1, 4)), spare=st.sampled_from((0, 2)),
        splits=st.sampled_from((1, 3)), window=st.sampled_from(((-1, -1), (-1, 0), (20, 0))),
    )  # fmt: skip
    def decode(
        self, config: int, queries: int, spare: int, splits: int, window: tuple[int, int]
    ) -> None:
        self.judge(config, queries, spare, splits, window)

    def judge(
        self, config: int, queries: int = 1, spare: int = 1, splits: int = 1,
        window: tuple[int, int] = (-1, -1),
    ) -> None:  # fmt: skip
        """Attention of some queries of every sequence, of random values, is exact.

        spare: entries of the block table beyond those that the longest sequence needs.
        """
        space, configs = self.subject.space, self.subject.target.configs
        some = [s for s in self.sequences if s.length or space.empty_keys]
        if not some:
            return
        width = max(1, *(len(s.pages) for s in some)) + spare
        table = np.full((len(some), width), (self.free or [0])[0], np.int64)
        for row, s in zip(table, some, strict=True):
            row[: len(s.pages)] = s.pages
        # [B, pages, page size, Hkv, D] as [B, Hkv, Lk, D].
        k, v = (
            pool[table].reshape(len(some), -1, self.kv_heads, self.dim).swapaxes(1, 2)
            for pool in (self.keys, self.values)
        )
        problem = Problem(
            dtype=space.dtype, batch=len(some), heads=self.heads, kv_heads=2, len_q=queries,
            len_k=width * self.size, dim=self.dim, dim_v=self.dim,
            scale=None if space.scale_none else 0.5,
            window=window if "window_size" in space.options else (-1, -1),
            num_splits=splits if "num_splits" in space.options else 1,
            seqlens_k=tuple(s.length for s in some), page=self.size,
        )  # fmt: skip
        inputs = problem.inputs().with_(
            q=self.normal(len(some), self.heads, queries, self.dim), k=k, v=v,
            pages=Pages(self.size, POOL, table),
        )  # fmt: skip
        case = self.subject.case(problem, configs[config % len(configs)], inputs)
        for law in (agreement, poison_memory):
            check = law.check(case)
            if check.verdict is not Verdict.UNSUPPORTED:
                check.raise_if_failed()


def test_cache(kernel: Subject, run_machine: Callable[[Callable[[], Cache]], None]) -> None:
    if "block_table" not in kernel.space.options:
        raise unittest.SkipTest(f"a cache has pages, which {kernel.target.name} does not take")
    run_machine(lambda: Cache(kernel))
