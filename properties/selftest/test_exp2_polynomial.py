"""kernels/exp2_polynomial.py: its error, and in which dtypes the contract allows it."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from flashcheck.formats import FORMATS
from flashcheck.kernel import Contract, Kernel
from flashcheck.law import Subject, laws
from flashcheck.openings import openings
from flashcheck.probe import probe
from flashcheck.verdict import Verdict
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

exp2_polynomial = import_module("flashcheck.kernels.exp2_polynomial")
attention = import_module("flashcheck.kernels.fp32_stats").attention
AGREEMENT = laws()[0]


def _worst(degree: int, dtype: torch.dtype) -> float:
    """The largest relative error, over every binade of the argument down to -100."""
    near = torch.linspace(-1, 0, 200_001, dtype=dtype)
    x = torch.cat([near, near * 100, near - 30, -torch.logspace(-40, 0, 10_000, 2, dtype=dtype)])
    exact = np.exp2(x.double().numpy())
    return float(np.abs(exp2_polynomial.exp2(x, degree).double().numpy() / exact - 1).max())


@pytest.mark.parametrize("degree", range(1, 11))
def test_error(degree: int) -> None:
    """Within what is derived, and at least half of it where interpolation is most of it."""
    wide = _worst(degree, torch.float64)
    derived = exp2_polynomial.error(degree, 2.0**-53)
    assert derived / 2 < wide + 1e-14
    assert wide <= derived + 2.0**-52  # numpy's own exp2
    assert _worst(degree, torch.float32) <= exp2_polynomial.error(degree)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_what_is_hidden_or_far_below(dtype: torch.dtype) -> None:
    x = torch.tensor([-math.inf, -2000.0, -1100.0, -150.0, -126.0, -1.0, 0.0, 8.0], dtype=dtype)
    got, exact = exp2_polynomial.exp2(x, 7), torch.exp2(x)
    assert got[0] == 0
    u, tiny = torch.finfo(dtype).eps / 2, torch.finfo(dtype).tiny
    allowed = (exp2_polynomial.error(7, u) + 2 * u) * exact + tiny  # 2 u: torch's own
    assert ((got - exact).abs() <= allowed).all()


def test_degree_three_is_within_a_quarter_of_a_half_format_s_roundoff() -> None:
    worst = _worst(3, torch.float32)
    assert worst < FORMATS["float16"].unit_roundoff / 4 < FORMATS["bfloat16"].unit_roundoff / 4
    assert worst > 100 * (8 * FORMATS["float32"].unit_roundoff)


def _verdicts(contract: Contract, dtype: str, seed: int, **options: Any) -> set[Verdict]:
    kernel = Kernel(
        attention, dtypes=(dtype,), configs={"16x16": {"BLOCK_N": 16, **options}},
        contract=contract,
    )  # fmt: skip
    runner = InProcess(kernel)
    target = runner.start()
    space = probe(runner, target, (dtype,)).spaces[dtype]
    subject = Subject(runner, target, space)
    return {AGREEMENT.check(subject.case(p)).verdict for p in openings(space, seed)}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_degree_three_keeps_the_contract_in_half_precision_alone(dtype: str, seed: int) -> None:
    found = _verdicts(Contract(), dtype, seed, exp_degree=3)
    assert (Verdict.VIOLATION in found) == (dtype == "float32")
    declared = Contract(exp_form="exp", exp_error=exp2_polynomial.error(3))
    assert _verdicts(declared, dtype, seed, exp_degree=3) == {Verdict.PASS}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_maximum_may_lag_by_what_p_can_hold(dtype: str) -> None:
    """2^16 is more than float16 holds, and P is rounded to it."""
    for octaves in (0.5, 8.0, 15.0):
        declared = Contract(rescale_threshold=octaves)
        assert _verdicts(declared, dtype, 0, rescale_threshold=octaves) == {Verdict.PASS}
    found = _verdicts(Contract(), dtype, 0, rescale_threshold=24.0)
    assert (Verdict.VIOLATION in found) == (dtype == "float16")
