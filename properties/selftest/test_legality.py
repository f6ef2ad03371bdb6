"""A kernel is asked what the contract allows and what it takes, by every front end."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import flashcheck
from flashcheck import Kernel, Problem, Verdict, regressions
from flashcheck.events import Checked, Event
from flashcheck.examples import Example, of_tensors, save
from flashcheck.fills import Fill
from flashcheck.kernel import Target
from flashcheck.law import Subject, law_named, laws
from flashcheck.legality import assumed
from flashcheck.loading import describe
from flashcheck.masks import Mask
from flashcheck.probe import probe
from flashcheck.regressions import why_not
from flashcheck.replay import replay
from flashcheck.strategies import Space, drawn
from flashcheck.verdict import Check
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

NORMAL = Fill(noise="normal", spread=1.0)
PLAIN = Problem(len_q=4, len_k=5, dim=16, dim_v=16, q=NORMAL, k=NORMAL, v=NORMAL)
PACKED = replace(PLAIN, len_q=5, seqlens_q=(3, 2), seqlens_k=(3, 2))
PAGED = replace(PLAIN, len_q=2, len_k=16, seqlens_k=(11,), page=16)
LAWS = [law.name for law in laws() if not law.backward]

Attention = Callable[..., torch.Tensor]


def softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = (q.double() @ k.double().mT / q.shape[-1] ** 0.5).softmax(-1) @ v.double()
    return out.to(q.dtype)


def picky(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
    window_size: tuple[int, int] | None = None, softcap: float | None = None,
    enable_gqa: bool | None = None, attn_mask: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Names much, and says honestly that it is not built yet."""
    if (window_size, softcap, enable_gqa, attn_mask, num_splits) != (None,) * 5:
        raise RuntimeError("this build has no options")
    return softmax(query, key, value)


def sequences(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, q: Any, k: Any
) -> torch.Tensor:
    out = torch.zeros(*query.shape[:3], value.shape[3], dtype=query.dtype)
    for q0, q1, k0, k1 in zip(q, q[1:], k, k[1:], strict=False):
        if k1 > k0:
            out[:, :, q0:q1] = softmax(query[:, :, q0:q1], key[:, :, k0:k1], value[:, :, k0:k1])
    return out


def required(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
    cu_seqlens_q: torch.Tensor, cu_seqlens_k: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    return sequences(query, key, value, cu_seqlens_q.tolist(), cu_seqlens_k.tolist())


def optional(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
    cu_seqlens_q: torch.Tensor | None = None, cu_seqlens_k: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    if cu_seqlens_q is None or cu_seqlens_k is None:
        raise ValueError("cu_seqlens only")
    return required(query, key, value, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)


def either(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
    cu_seqlens_q: torch.Tensor | None, cu_seqlens_k: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Its lengths have no default, and may be None."""
    if cu_seqlens_q is None or cu_seqlens_k is None:
        return softmax(query, key, value) if key.shape[2] else torch.zeros_like(query)
    return required(query, key, value, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)


def example(problem: Problem, property: str = "agreement", **changes: Any) -> Example:
    fields: dict[str, Any] = {"target": "gone.py:attention", "name": "gone"}
    fields |= {"check": Check(property, Verdict.VIOLATION, 9.0, "out value", "it was wrong")}
    return Example(problem=problem, property=property, **fields | changes)


def subject_of(kernel: Any, dtype: str = "float32") -> Subject:
    runner = InProcess(kernel)
    target = runner.start()
    return Subject(runner, target, probe(runner, target, (dtype,)).spaces[dtype], "cpu")


def test_options_that_were_refused_are_not_passed() -> None:
    """Not by a law that the gate draws a problem for, not by `check`."""
    subject = subject_of(picky)
    assert subject.space.options == frozenset()
    law = law_named("neutral_options")
    assert law is not None
    assert not law.possible(subject)
    assert not law.applies(subject.case(PLAIN))
    # attn_mask=None is passed too, which is not refused.
    found = [flashcheck.check(picky, replace(PLAIN, seed=n), property="neutral_options")
             for n in range(4)]  # fmt: skip
    assert {check.verdict for check in found} == {Verdict.UNSUPPORTED, Verdict.PASS}
    refused = flashcheck.check(picky, replace(PLAIN, window=(1, 1)))
    assert refused.verdict is Verdict.UNSUPPORTED
    assert "picky does not take window_size" in refused.message


def test_a_crash_stays_one() -> None:
    """On a problem that is made of what is accepted."""

    def long(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if key.shape[2] == 5:
            raise RuntimeError("five")
        return softmax(query, key, value)

    assert flashcheck.check(long, PLAIN).verdict is Verdict.CRASH
    assert flashcheck.check(long, replace(PLAIN, len_k=6)).verdict is Verdict.PASS


@pytest.mark.parametrize("kernel", [required, optional, either])
@pytest.mark.parametrize("name", LAWS)
def test_kernels_of_packed_batches_hold_every_law(kernel: Attention, name: str) -> None:
    for seed in range(3):
        check = flashcheck.check(kernel, replace(PACKED, seed=seed), property=name)
        assert not check.failed, check.message


def test_plain_calls_of_kernels_of_packed_batches() -> None:
    for kernel in (required, optional):
        check = flashcheck.check(kernel, PLAIN)
        assert check.verdict is Verdict.UNSUPPORTED
        assert "does not take plain calls, without cu_seqlens_q" in check.message
    assert flashcheck.check(either, PLAIN).verdict is Verdict.PASS


@pytest.mark.parametrize("problem", [PACKED, PAGED])
def test_regressions_of_sequences_are_asked(problem: Problem) -> None:
    subject = subject_of("fp32_stats")
    assert why_not(example(problem), subject.space, subject.target) == ""
    check = subject.case(problem)
    assert not laws()[0].check(check).failed


@pytest.mark.slow
def test_the_gate_checks_regressions_of_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = [example(problem) for problem in (PACKED, PAGED)]
    for each in kept:
        save(each, regressions.FOLDER)
    checked: list[str] = []

    def note(event: Event) -> None:
        if isinstance(event, Checked) and event.regression:
            checked.append(event.regression)

    flashcheck.gate(
        ["fp32_stats"], dtypes=["float32"], budget="10", seed=1, isolate=False, listeners=[note]
    )
    assert {each.id for each in kept} <= {*checked}


@pytest.mark.slow
def test_the_gate_passes_kernels_of_packed_batches_alone() -> None:
    """With checks enough of every property that is about them."""
    for kernel in (required, optional):
        result = flashcheck.gate(
            [kernel], dtypes=["float32"], budget="smoke", seed=1, isolate=False
        )
        assert result.exit_code == 0


TARGET: Target = describe(lambda query, key, value: query)[1]
EVERYTHING = Space(
    options=Space().options | {"window_size", "alibi_slopes", "softcap", "cu_seqlens_q",
    "cu_seqlens_k", "block_table", "cache_seqlens", "q_descale"},
)  # fmt: skip
CAUSAL = replace(PLAIN, is_causal=True)
SLOPES = replace(CAUSAL, alibi_slopes=Fill(level=0.5))
BLOCKS = replace(
    PLAIN, dtype="float8_e4m3fn", q_descale=Fill(level=2.0), descale_per="block",
    descale_block=(2, 2),
)  # fmt: skip


@pytest.mark.parametrize(
    ("problem", "changes", "why"),
    [
        (replace(CAUSAL, window=(1, 0)), {}, "how is_causal and window_size go together"),
        (replace(CAUSAL, window=(1, 0)), {}, "causal_alignment='bottom_right'"),
        (replace(CAUSAL, window=(1, 0)), {"aligned": True}, ""),
        (replace(CAUSAL, window=(1, 0), len_q=5), {}, ""),
        (SLOPES, {}, "is_causal and alibi_slopes"),
        (replace(SLOPES, window=(1, 0)), {}, "is_causal and window_size and alibi_slopes"),
        (replace(PACKED, is_causal=True, window=(1, 0)), {}, ""),
        (replace(PACKED, is_causal=True, window=(1, 0), seqlens_k=(2, 3)), {}, "where Lq is not"),
        (replace(PAGED, is_causal=True, window=(1, 0)), {}, "where Lq is not Lk"),
        (replace(CAUSAL, mask=Mask()), {}, "attn_mask together with is_causal"),
        (replace(PAGED, page=8), {}, "does not take pages of 8 keys"),
        (PAGED, {"pages": (8, 64)}, "does not take pages of 16 keys"),
        (PLAIN, {"dense": False}, "does not take plain calls"),
        (PACKED, {"dense": False}, ""),
        (BLOCKS, {}, "declare that q_descale are of such blocks: descale_block=(2, 2)"),
        (BLOCKS, {"descale_block": (2, 4)}, "descale_block=(2, 2)"),
        (BLOCKS, {"descale_block": (2, 2)}, ""),
    ],
)  # fmt: skip
def test_what_the_contract_excludes(problem: Problem, changes: Any, why: str) -> None:
    space = replace(EVERYTHING, **changes)
    said = why_not(example(problem), space, TARGET)
    assert why in said if why else said == ""
    assert space.takes(problem) is (not why)


def test_captured_factors_of_blocks() -> None:
    problem, tensors = of_tensors(BLOCKS.inputs())
    kept = example(problem, captured=tensors)
    assert "descale_block=(2, 2)" in why_not(kept, EVERYTHING, TARGET)
    assert why_not(kept, replace(EVERYTHING, descale_block=(2, 2)), TARGET) == ""


@pytest.mark.parametrize("problem", [replace(CAUSAL, window=(1, 0)), SLOPES])
def test_check_and_results(problem: Problem) -> None:
    """What is aligned in two ways has no result to be judged by, until it is declared."""
    check = flashcheck.check("fp32_stats", problem)
    assert check.verdict is Verdict.UNSUPPORTED
    assert "causal_alignment='bottom_right'" in check.message
    assert flashcheck.check("fp32_stats[bottom_right]", problem).verdict is Verdict.PASS
    out = torch.zeros(1, 1, 4, 16)
    with pytest.raises(ValueError, match=r"go together .*causal_alignment='bottom_right'"):
        flashcheck.assert_within_bound(out, problem)
    with pytest.raises(ValueError, match=r"go together .*causal_alignment='bottom_right'"):
        flashcheck.assert_within_bound(out, problem.inputs())


PICKY = """
    import torch

    def attention(query, key, value, *, window_size=None, num_splits=None, softcap=None):
        if window_size is not None or softcap is not None:
            raise ValueError("not in this build")
        s = query.double() @ key.double().mT / query.shape[-1] ** 0.5
        out = s.softmax(-1) @ value.double()
        if num_splits is not None:
            out = out * {factor}
        return out.to(query.dtype)
    """


def test_replay_chooses_what_the_gate_chose(tmp_path: Path, monkeypatch: Any) -> None:
    """Among the options that the kernel takes, whatever others it names."""
    monkeypatch.chdir(tmp_path)
    law = law_named("neutral_options")
    assert law is not None

    def write(factor: float) -> None:
        Path("picky.py").write_text(textwrap.dedent(PICKY).format(factor=factor))

    write(1.1)
    subject = subject_of("picky.py:attention")
    assert subject.space.options == {"num_splits"}
    kept = []
    for seed in range(4):
        problem = replace(PLAIN, seed=seed)
        check = law.check(subject.case(problem))
        kept.append(example(problem, law.name, check=check, target="picky.py:attention"))
    paths = [save(each) for each in kept]
    assert {each.check.verdict for each in kept} == {Verdict.VIOLATION}
    assert {again.status for again in replay(paths, isolate=False)} == {"FAILED"}
    write(1.0)
    assert {again.status for again in replay(paths, isolate=False)} == {"FIXED"}


def test_replay_of_split_independence() -> None:
    """It is about an option that SDPA has not."""
    target = InProcess("fp32_stats").start()
    kept = example(PLAIN, "split_independence")
    assert "num_splits" in kept.space(target).options
    assert assumed(target, PLAIN).options >= {"window_size", "cu_seqlens_q"}


@pytest.mark.parametrize("names", ["", "q", "k", "qk"])
def test_keywords_of_drawn_problems(names: str) -> None:
    """`attention(*p.tensors(), **p.options())` passes what the kernel names, and all of it."""
    given = [f"max_seqlen_{x}" for x in names]
    kernel = Kernel(optional, options=("cu_seqlens_q", "cu_seqlens_k", *given))
    space = replace(EVERYTHING, options=frozenset(kernel.options or ()), dense=False)
    for problem in drawn(space, 20, 0):
        assert {*problem.options()} - {"enable_gqa"} == space.options, problem
        assert Problem.from_dict(problem.to_dict()) == problem
    assert {*PACKED.options()} == {"cu_seqlens_q", "cu_seqlens_k"}
    assert {*PACKED.inputs().options()} > {"max_seqlen_q", "max_seqlen_k"}


def test_readme_pattern_without_max_seqlen() -> None:
    space = flashcheck.space(required)
    assert space.options == {"cu_seqlens_q", "cu_seqlens_k"}
    for problem in drawn(space, 20, 0):
        flashcheck.assert_within_bound(required(*problem.tensors(), **problem.options()), problem)


@pytest.mark.parametrize("name", ["cu_seqlens_q", "max_seqlen_k", "block_table"])
def test_inputs_of_sequences(name: str) -> None:
    """They have no tensors of a user's own; what is misspelt is told apart from that."""
    query = torch.zeros(1, 1, 2, 4)
    given: Any = {name: torch.tensor([0, 2])}
    with pytest.raises(ValueError, match=rf"{name}: .* give each sequence's tensors as a call"):
        flashcheck.inputs_of(query, query, query, **given)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'is_casual'"):
        flashcheck.inputs_of(query, query, query, is_casual=True)


@pytest.mark.parametrize("kernel", ["fp32_stats", "numpy_online", "fp32_float8", "triton_decode"])
def test_no_splits(kernel: str) -> None:
    pytest.importorskip("triton" if kernel.startswith("triton") else "torch")
    attention = import_module(f"flashcheck.kernels.{kernel}").attention
    q = torch.zeros(1, 1, 2, 16)
    for splits in (0, -1):
        with pytest.raises(ValueError, match=rf"num_splits is {splits}; it must be 1 or more"):
            attention(q, q, q, num_splits=splits)


def test_what_sequences_leave_untested() -> None:
    """A mask beside them, and gradients: the report says so of kernels that take them."""

    def said(kernel: Any) -> str:
        runner = InProcess(kernel)
        return "\n".join(probe(runner, runner.start(), ("float32",)).untested)

    masks = "attn_mask together with cu_seqlens_q or block_table: flashcheck makes no such calls"
    assert masks in said("fp32_stats")
    assert "attn_mask together" not in said(required)

    def packed(query: Any, key: Any, value: Any, *, cu_seqlens_q: Any = None, **_: Any) -> Any:
        return softmax(query, key, value)

    options = ("cu_seqlens_q", "cu_seqlens_k")
    text = said(Kernel(packed, options=options, backward=True))
    assert "but q, k and v, and all beside cu_seqlens_q" in text
    assert "beside" not in said(Kernel(softmax, options=(), backward=True))
