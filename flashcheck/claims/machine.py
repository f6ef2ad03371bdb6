"""Machine: a chip beside a slow memory, which counts what crosses between them.

A kernel for it is plain NumPy. Indexing a `Memory` loads elements onto the chip, assigning to
it stores them; both are counted by the array's name. What is on the chip is an `OnChip`
array: every operation on one is counted by name, and the elements of all that are alive make
`peak`, the size of the on-chip memory that the kernel needs.
"""

from __future__ import annotations

import weakref
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flashcheck.formats import Array


class Machine:
    """Counts of elements read and written by array, and of operations by name.

    `operations["multiply_add"]` counts those of matrix products; other operations count
    one for each element of their result, reductions one for each element of their operand.
    """

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.writes: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.peak = 0
        self._live = 0

    @property
    def traffic(self) -> int:
        """Elements that crossed, either way."""
        return self.reads.total() + self.writes.total()

    @property
    def multiply_adds(self) -> int:
        return self.operations["multiply_add"]

    @property
    def flops(self) -> int:
        """Two for a multiply-add, one for anything else."""
        return self.operations.total() + self.multiply_adds

    def memory(self, name: str, x: ArrayLike) -> Memory:
        """An array in the slow memory. Nothing is counted for putting it there."""
        return Memory(self, name, np.array(x, np.float64))

    def chip(self, x: ArrayLike) -> OnChip:
        """An array made on the chip."""
        made = np.array(x, np.float64).view(OnChip)
        made.machine = self
        self._live += made.size
        self.peak = max(self.peak, self._live)
        weakref.finalize(made, self._release, made.size)
        return made

    def multiply_add(self, into: Array, x: Array, y: Array) -> None:
        """into += x @ y in place, as a tensor core accumulates."""
        plain = np.asarray(into)
        plain += np.asarray(x) @ np.asarray(y)
        self.operations["multiply_add"] += into.size * x.shape[-1]

    def _release(self, size: int) -> None:
        self._live -= size


class Memory:
    """An array in the slow memory."""

    def __init__(self, machine: Machine, name: str, x: Array) -> None:
        self._machine, self._name, self._array = machine, name, x

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> OnChip:
        part = self._array[index]
        self._machine.reads[self._name] += part.size
        return self._machine.chip(part)

    def __setitem__(self, index: Any, x: ArrayLike) -> None:
        self._array[index] = np.asarray(x)
        self._machine.writes[self._name] += self._array[index].size

    def contents(self) -> Array:
        """What it holds, to look at from outside: not counted."""
        return self._array


class OnChip(np.ndarray[Any, np.dtype[np.float64]]):
    """An array on the chip; a view of one takes no room of its own."""

    machine: Machine

    def __array_finalize__(self, source: Any) -> None:
        if isinstance(source, OnChip):
            self.machine = source.machine

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: Any, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        plain = [np.asarray(x) for x in inputs]
        if out is not None:
            options["out"] = tuple(np.asarray(x) for x in out)
        result = getattr(ufunc, method)(*plain, **options)
        if ufunc is np.matmul:
            self.machine.operations["multiply_add"] += result.size * plain[0].shape[-1]
        else:
            counted = plain[0] if method == "reduce" else result
            self.machine.operations[ufunc.__name__] += counted.size
        return self.machine.chip(result) if out is None else out[0]
