"""benchmarks/policies.py: what other projects' criteria accept, on errors made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from policies import LSE_POLICIES, MORE_POLICIES, POLICIES, Seen

from flashcheck.formats import FORMATS, Array

ALL = POLICIES | MORE_POLICIES
DTYPES = ("float32", "float16", "bfloat16")

MEANS_AND_SHARES = {
    "FlexAttention", "FlexAttention, newer", "tilelang", "aiter, ratio", "cosine",
    "FlashInfer, MSE", "array-api-tests",
}  # fmt: skip
"""Criteria that look at a mean, at a share or at nothing smaller than 1."""


def shown(dtype: str) -> Seen:
    """256 rows of normal numbers, and a plain implementation one unit in the last place off."""
    fmt = FORMATS[dtype]
    golden = np.random.default_rng(0).standard_normal((1, 2, 128, 64))
    ref = fmt.round(golden)
    return Seen(fmt, golden, ref, fmt.round(ref * (1 + 2 * fmt.unit_roundoff)), np.abs(golden))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ALL)
def test_the_exact_result_rounded_passes(name: str, dtype: str) -> None:
    seen = shown(dtype)
    assert ALL[name](seen.ref, seen)


@pytest.mark.parametrize("name", ALL)
def test_nan_in_a_row_fails(name: str) -> None:
    seen = shown("float16")
    out = seen.ref.copy()
    out[0, 1, 5] = np.nan
    # A ratio of mismatches forgives them, whatever they are.
    assert ALL[name](out, seen) == (name in {"tilelang", "aiter, ratio"})


@pytest.mark.parametrize("name", ALL)
def test_one_row_of_zeros_is_lost_in_a_mean_or_a_share(name: str) -> None:
    seen = shown("bfloat16")
    out = seen.ref.copy()
    out[0, 1, 5] = 0.0
    forgiven = MEANS_AND_SHARES - {"array-api-tests"}
    assert ALL[name](out, seen) == (name in forgiven)


def off(seen: Seen, error: float) -> Array:
    """The result with one element off by `error`, where it is nearest to 1/2."""
    out = seen.ref.copy()
    at = np.unravel_index(np.abs(out - 0.5).argmin(), out.shape)
    out[at] += error
    return out


@pytest.mark.parametrize(
    ("name", "passes", "fails"),
    [
        ("torch.testing.assert_close", 4e-4, 7e-4),  # 1e-5 + 1e-3 / 2
        ("FlashInfer", 1.4e-3, 1.6e-3),
        ("xFormers", 4.1e-3, 4.4e-3),
        ("JAX Mosaic", 2.4e-3, 2.6e-3),
        ("Triton tutorial", 9.9e-3, 1.1e-2),
        ("vLLM", 1.9e-2, 2.1e-2),
        ("tritonbench", 2.4e-2, 2.6e-2),
        ("JAX Pallas", 4.9e-2, 5.1e-2),
        ("robust-kbench", 1.4e-5, 1.6e-5),
        ("array-api-tests", 0.9, 1.1),
        ("aiter", 9.9e-3, 1.1e-2),  # the floor
    ],
)
def test_a_tolerance_ends_where_it_is_said_to(name: str, passes: float, fails: float) -> None:
    seen = shown("float16")
    assert ALL[name](off(seen, passes), seen)
    assert not ALL[name](off(seen, fails), seen)


def test_flash_attention_allows_twice_the_error_of_the_plain_implementation() -> None:
    seen = shown("float16")
    error = float(np.abs(seen.pt - seen.ref).max())
    assert ALL["flash-attention"](off(seen, 1.9 * error), seen)
    assert not ALL["flash-attention"](off(seen, 2.1 * error), seen)


def test_lse_is_infinite_where_the_exact_one_is() -> None:
    exact = np.array([-np.inf, 0.5, 3.0])
    for passes in LSE_POLICIES.values():
        assert passes(exact, exact)
        assert not passes(np.array([-1e30, 0.5, 3.0]), exact)
        assert not passes(np.array([-np.inf, 0.52, 3.0]), exact)
