"""Threads: one for each process, set before NumPy loads its BLAS.

A BLAS that shares its cores with a busy kernel is many times slower than one thread.
"""

from __future__ import annotations

import os

VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def pin() -> None:
    """One thread, unless the user says otherwise."""
    for name in VARIABLES:
        os.environ.setdefault(name, "1")


pin()
