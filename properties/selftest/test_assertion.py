"""assert_within_bound, and tensors: from recipes to torch and back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn.functional import scaled_dot_product_attention

import flashcheck
from flashcheck import CheckFailed, Contract, Problem, Verdict, assert_within_bound, inputs_of
from flashcheck.fills import Fill
from flashcheck.formats import DTYPES
from flashcheck.inputs import LAYOUTS
from flashcheck.masks import Mask

pytestmark = pytest.mark.cpu

NORMAL = Fill(noise="normal", spread=1.0)
SPACE = flashcheck.Space(
    positive_scale=True,
    mask_forms=frozenset(form for form in flashcheck.Space().mask_forms if form[2] in (2, 4)),
)
"""What torch's attention takes, and what it gets right."""
FEW = settings(
    max_examples=60, deadline=None, database=None, derandomize=True,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def exact(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    **options: Any,
) -> torch.Tensor:
    """torch's attention in float64, rounded once."""
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask.double()
    q, k, v = query.double(), key.double(), value.double()
    out = scaled_dot_product_attention(q, k, v, attn_mask, **options)
    return out.nan_to_num(0.0).to(query.dtype)


def call(**options: Any) -> tuple[tuple[torch.Tensor, ...], dict[str, Any]]:
    random = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, 4, 10, 8, generator=random) for _ in range(3)), options


@FEW
@given(flashcheck.problems(SPACE))
def test_problem_to_torch(problem: Problem) -> None:
    """torch's own attention on tensors(), options() is within the bound, masks included."""
    assert_within_bound(exact(*problem.tensors(), **problem.options()), problem)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors(dtype: str, layout: Any) -> None:
    """The values of the recipe, in its dtype and its layout in memory."""
    mask = Mask(kind="bool", hides="random")
    problem = Problem(
        dtype=dtype, batch=2, heads=3, kv_heads=3, len_q=5, len_k=5, dim=4, dim_v=4, q=NORMAL,
        k=NORMAL, v=NORMAL, layout=layout, mask=mask,
    )  # fmt: skip
    x, (q, k, v), options = problem.inputs(), problem.tensors(), problem.options()
    for tensor, array in ((q, x.q), (k, x.k), (v, x.v)):
        assert tensor.dtype == getattr(torch, dtype)
        assert np.array_equal(tensor.double().numpy(), array)
    assert list(options) == ["attn_mask"]
    assert x.mask is not None
    assert np.array_equal(options["attn_mask"].numpy(), x.mask)
    assert (q.is_contiguous() and q.storage_offset() == 0) == (
        layout in ("contiguous", "expanded_batch", "expanded_heads", "mixed_k", "mixed_v")
    )
    # New memory each time: a kernel that writes to its inputs changes no other call.
    assert problem.tensors()[0].data_ptr() != q.data_ptr()


def test_options() -> None:
    """Those that change something, by the names that torch gives them."""
    assert Problem().options() == {}
    problem = Problem(heads=4, kv_heads=2, len_q=3, len_k=3, scale=0.5, is_causal=True)
    assert problem.options() == {"scale": 0.5, "is_causal": True, "enable_gqa": True}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.ones(10, 10).tril(1) > 0},
        {"attn_mask": torch.randn(2, 1, 1, 10)},
    ],
)
def test_own_tensors(options: dict[str, Any]) -> None:
    tensors, options = call(**options)
    check = assert_within_bound(exact(*tensors, **options), inputs_of(*tensors, **options))
    assert check.verdict is Verdict.PASS
    with pytest.raises(CheckFailed):  # the options count
        assert_within_bound(exact(*tensors), inputs_of(*tensors, scale=0.9))


def test_grouped_heads() -> None:
    (q, k, v), _ = call()
    k, v = k[:, :2], v[:, :2]
    out = exact(q, k, v, enable_gqa=True)
    assert_within_bound(out, inputs_of(q, k, v, enable_gqa=True))


def test_one_element() -> None:
    """The worst element is named, as the numbers that torch.testing gives are."""
    tensors, _ = call()
    out = exact(*tensors)
    out[1, 2, 3, 4] += 1e-3
    with pytest.raises(AssertionError) as caught:
        assert_within_bound(out, inputs_of(*tensors))
    assert isinstance(caught.value, CheckFailed)
    text = str(caught.value)
    assert "error 0.001   bound" in text
    assert "at o[b=1, h=2, query=3, d=4]; 1 of 640 elements wrong, no NaN or Inf" in text
    assert "10 queries, 10 keys, head size 8, batch 2, 4 heads, float32, no mask" in text
    worst = caught.value.check.worst
    assert worst is not None
    assert worst.index == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda out: out.half(), "out has dtype float16; it should be float32"),
        (lambda out: out[:1], r"out has shape \[1, 4, 10, 8\]; it should be \[2, 4, 10, 8\]"),
        (lambda out: out.index_fill(0, torch.tensor(1), torch.nan), "320 NaN"),
        (lambda out: out / 0, "640 of 640 elements wrong, 640 Inf"),
        (lambda out: None, "out is None, not a torch tensor"),
        (lambda out: (out,), "returned a tuple of 1"),
        (lambda out: (out, out[..., 0]), "lse"),
        (lambda out: (out, out[..., 0].double()), "lse has dtype float64; it should be float32"),
    ],
)
def test_wrong_results(spoil: Any, said: str) -> None:
    tensors, _ = call()
    with pytest.raises(CheckFailed, match=said):
        assert_within_bound(spoil(exact(*tensors)), inputs_of(*tensors))


def test_lse() -> None:
    tensors, _ = call()
    q, k, _ = tensors
    lse = (q.double() @ k.double().mT * 8**-0.5).logsumexp(-1)
    given = inputs_of(*tensors)
    assert_within_bound((exact(*tensors), lse.float()), given)
    assert_within_bound((exact(*tensors), (lse / np.log(2)).float()), given, lse_base="2")


def test_declared() -> None:
    """What the kernel promises, and how its result is to be read."""
    tensors, _ = call()
    given = inputs_of(*tensors)
    out = exact(*tensors)
    assert_within_bound(out.transpose(1, 2), given, layout="bshd")
    q, k, v = tensors
    rough = exact(q.bfloat16().float(), k.bfloat16().float(), v)
    with pytest.raises(CheckFailed, match="contract=flashcheck"):
        assert_within_bound(rough, given)
    check = assert_within_bound(out + 1e-5, given, contract=Contract(qk="tf32"))
    assert check.verdict is Verdict.PASS
    shorter = inputs_of(q[:, :, :3], k, v, is_causal=True)
    aligned = exact(q[:, :, :3], k, v, attn_mask=torch.ones(3, 10).tril(7) > 0)
    assert_within_bound(aligned, shorter, causal_alignment="bottom_right")
    blind = inputs_of(*tensors, attn_mask=torch.zeros(10, 10) > 0)
    with pytest.raises(CheckFailed, match="640 NaN"):
        assert_within_bound(out * torch.nan, blind)
    assert_within_bound(out * torch.nan, blind, masked_rows="nan")


def test_vacuous() -> None:
    """The check says that it proved nothing; a right kernel is not failed."""
    (q, k, v), _ = call()
    check = assert_within_bound(exact(q * 1e18, k * 1e18, v), inputs_of(q * 1e18, k * 1e18, v))
    assert check.verdict is Verdict.VACUOUS


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"key": [1.0]}, TypeError, "key is a list, not a torch tensor"),
        ({"value": torch.ones(2, 4, 10, 8).half()}, ValueError, "value float16; they must be"),
        ({"query": torch.ones(4, 10, 8)}, ValueError, "query has shape .*; it must have four"),
        ({"key": torch.ones(2, 4, 10, 7)}, ValueError, r"must be \[B, Hq, Lq, D\]"),
        ({"query": torch.ones(2, 8, 10, 8)}, ValueError, "8 query heads on 4 key heads"),
        ({"query": torch.ones(2, 4, 0, 8)}, ValueError, "only Lk may be 0"),
        ({"query": torch.ones(2, 4, 10, 8) / 0}, ValueError, "query holds NaN or infinity"),
        ({"attn_mask": torch.ones(10, 9) > 0}, ValueError, r"does not broadcast to \[2, 4"),
        ({"attn_mask": torch.ones(10, 10).int()}, ValueError, "attn_mask is int32; it must be"),
        ({"attn_mask": torch.ones(10, 10) / 0}, ValueError, "attn_mask holds NaN or"),
        ({"scale": float("inf")}, ValueError, "scale is inf"),
        ({"scale": torch.tensor(math.nan)}, ValueError, "scale is nan"),
    ],
)
def test_mistakes_of_the_caller(change: dict[str, Any], error: type[Exception], said: str) -> None:
    (q, k, v), _ = call()
    with pytest.raises(error, match=said):
        inputs_of(**{"query": q, "key": k, "value": v, **change})


def test_not_a_problem() -> None:
    (q, k, v), _ = call()
    with pytest.raises(TypeError, match=r"problem is of type tuple; .*inputs_of\(query, key"):
        assert_within_bound(q, (q, k, v))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@FEW
@given(flashcheck.problems(SPACE))
def test_on_cuda(problem: Problem) -> None:
    """The same on a GPU: where the tensors lie is taken from them."""
    tensors, options = problem.tensors("cuda"), problem.options("cuda")
    out = exact(*tensors, **options)
    assert out.is_cuda
    assert_within_bound(out, problem)
    if problem.mask is None and problem.layout == "contiguous":
        assert_within_bound(out, inputs_of(*tensors, **options))
    assert flashcheck.check(exact, problem, device="cuda").verdict in (
        Verdict.PASS,
        Verdict.VACUOUS,
        Verdict.UNSUPPORTED,
    )
