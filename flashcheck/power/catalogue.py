"""Catalogue: the cells of a matrix, each fault in each kernel where it has a witness."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from flashcheck.power.matrix import Cell
from flashcheck.power.witness import chosen

KERNELS = (
    "numpy_online", "fp32_stats", "triton_flash", "triton_decode", "fp32_backward",
    "triton_backward", "fp32_float8", "triton_float8",
)  # fmt: skip
"""The kernels that are broken."""


def cells(
    seeds: Mapping[str, Sequence[int]],
    faults: Collection[str] | None = None,
    dtypes: Sequence[str] | None = None,
    *,
    clean: bool = True,
) -> list[Cell]:
    """Those of the kernels that `seeds` names, in the dtypes with a witness; None is all.

    clean: each kernel as it is too.
    """
    where: dict[tuple[str, str], list[str]] = {}
    for fault, kernel, dtype in (w.key for w in chosen(seeds, dtypes, faults)):
        where.setdefault((kernel, fault), []).append(dtype)
    found = [Cell(k, name, tuple(seeds[k]), tuple(ds)) for (k, name), ds in where.items()]
    if clean:
        every = tuple(dtypes) if dtypes else None
        found += [Cell(kernel, "", tuple(own), every) for kernel, own in seeds.items()]
    return found
