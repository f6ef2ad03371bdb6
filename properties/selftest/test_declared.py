"""What a kernel may declare beyond the contract is held against it, and asked of no other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashcheck import Kernel
from flashcheck.fills import Fill
from flashcheck.law import Subject, law_named
from flashcheck.masks import Mask
from flashcheck.probe import probe
from flashcheck.problem import Problem
from flashcheck.verdict import Verdict
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

NORMAL = Fill(noise="normal", spread=1.0)
TAIL = Problem(
    batch=2, heads=2, kv_heads=2, len_q=3, len_k=9, dim=4, dim_v=4, q=NORMAL, k=NORMAL, v=NORMAL,
    mask=Mask(hides="tail", amount=3),
)  # fmt: skip


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    hidden: str = "skipped",
    lost: bool = False,
    alone: float = 1.0,
    total: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Right, but for what the last arguments say."""
    k, v = key.double(), value.double()
    seen = torch.ones(query.shape[2], k.shape[2], dtype=torch.bool)
    if attn_mask is not None:
        seen = attn_mask.expand(*query.shape[:3], k.shape[2])
        any_row = seen.flatten(0, 2).any(0)[:, None]
        if hidden != "multiplied by 0":
            v = v.where(any_row, 0.0)
        if hidden == "skipped":
            k = k.where(any_row, 0.0)
    if lost:
        k, v = k.nan_to_num(), v.nan_to_num()
    s = (query.double() @ k.mT * query.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    if hidden == "in lse":
        s = s + 0.0 * k[:, :, -1:, :1]
    lse = s.logsumexp(-1)
    out = s.softmax(-1).nan_to_num() @ v if hidden == "in lse" else s.softmax(-1) @ v
    out = out * (alone if query.shape[0] == 1 else 1.0) * total
    return out.to(query.dtype), lse.float()


SLIGHT = 1 + 2.0**-22
"""Well within the bound of float32."""


@pytest.mark.parametrize(
    ("declared", "law", "wrong"),
    [
        ("isolates_masked_nan", "poison_masked", {"hidden": "multiplied by 0"}),
        ("isolates_masked_nan", "poison_masked", {"hidden": "in lse"}),
        ("propagates_nan", "nan_propagation", {"lost": True}),
        ("batch_invariant", "batch_independence", {"alone": SLIGHT}),
        ("exact_constant_v", "constant_v", {"total": SLIGHT}),
    ],
)
def test_a_declaration_is_judged(declared: str, law: str, wrong: dict[str, Any]) -> None:
    plain: dict[str, Any] = {"configs": {"right": {}, "wrong": wrong}, "options": ("attn_mask",)}
    declarations: tuple[dict[str, Any], ...] = ({}, {declared: True})
    for fields in declarations:
        runner = InProcess(Kernel(attention, **plain, **fields))
        target = runner.start()
        subject = Subject(runner, target, probe(runner, target, ("float32",)).spaces["float32"])
        found = law_named(law)
        assert found is not None
        case = subject.case(TAIL, "right")
        if not fields and law == "nan_propagation":
            assert not found.applies(case)
            assert not found.about(subject)
            continue
        assert found.check(case).verdict is Verdict.PASS
        expected = Verdict.VIOLATION if fields else Verdict.PASS
        assert found.check(subject.case(TAIL, "wrong")).verdict is expected
