"""Refuses to run where this repository hides another package's `kernels` or `properties`."""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

# One thread for each process, before NumPy loads its BLAS: shared cores make it crawl.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

ROOT = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The longest first, or one worker is alone with it at the end.
    items.sort(key=lambda item: item.path.name != "test_readme.py")


def pytest_configure() -> None:
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != ROOT]
    if len(elsewhere) == len(sys.path):
        return
    for name in ("kernels", "properties"):
        hidden = PathFinder.find_spec(name, elsewhere)
        if hidden is not None and hidden.origin is not None:
            raise pytest.UsageError(
                f"the root of this repository is on sys.path, where its folder {name}/ hides the "
                f"installed package {hidden.origin}: run `pytest` or `python -P -m pytest`, not "
                "`python -m pytest`, and take the root out of PYTHONPATH"
            )
