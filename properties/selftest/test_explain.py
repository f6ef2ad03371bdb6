"""Explanations name the fault: one small wrong kernel for each mistake that people make."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashcheck.explanation import Explanation, explain
from flashcheck.explanation.contrast import MAX_LINES, contrast
from flashcheck.explanation.diagnose import diagnose
from flashcheck.explanation.hints import hints
from flashcheck.explanation.weights import effective_weights
from flashcheck.fills import Fill
from flashcheck.formats import FORMATS
from flashcheck.kernel import Contract, Kernel
from flashcheck.law import Law, Subject, laws
from flashcheck.masks import Mask
from flashcheck.problem import Problem
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

LAWS = {law.name: law for law in laws()}
TF32 = FORMATS["tf32"]
NORMAL = Fill(noise="normal", spread=1.0)
NOISE: dict[str, Any] = {"q": NORMAL, "k": NORMAL, "v": NORMAL}


def flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    fault: str = "",
    block: int = 16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Online softmax in torch with one fault, or none."""
    stat = torch.float16 if fault == "float16 statistics" else torch.float32
    if query.dtype == torch.float64:
        stat = torch.float64
    q, k, v = (t.to(stat) for t in (query, key, value))
    if enable_gqa:
        group = q.shape[1] // k.shape[1]
        if fault == "gqa":
            k, v = (t.repeat(1, group, 1, 1) for t in (k, v))
        else:
            k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    if fault == "values in float16":
        v = v.clamp(-65504, 65504).half().to(stat)
    if fault == "gqa values":
        v = v.roll(1, 1)
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    if fault == "scale ignored":
        factor = 1 / math.sqrt(q.shape[-1])
    if fault == "abs scale":
        factor = abs(factor)
    if fault == "tf32":
        q, k = (torch.from_numpy(TF32.round(t.numpy())).to(stat) for t in (q, k))
    if fault == "scaled query":
        q, factor = (q * factor).to(query.dtype).to(stat), 1.0
    s = (q @ k.transpose(-1, -2)) * factor
    lq, lk = s.shape[-2:]
    i, j = torch.arange(lq)[:, None], torch.arange(lk)
    if is_causal and fault != "causal ignored":
        shift = {"sees next": 1, "not itself": -1, "bottom right": lk - lq}.get(fault, 0)
        s = s.masked_fill(j > i + shift, -math.inf)
    if attn_mask is not None:
        if fault == "heads swap masks":
            attn_mask = attn_mask.flip(-3)
        if fault == "batches swap masks":
            attn_mask = attn_mask.flip(0)
        if fault == "later half with a mask":
            s[..., : lk // 2] = -math.inf
        if attn_mask.dtype == torch.bool:
            if fault == "mask inverted":
                attn_mask = ~attn_mask
            hide = -1e4 if fault == "finite mask" else -math.inf
            s = s.masked_fill(~attn_mask, hide)
        else:
            s = s + attn_mask.to(stat)
    if fault == "one hidden key":
        s[..., -1] = (q @ k[:, :, -1:].transpose(-1, -2))[..., 0] * factor
    if fault == "exp2":
        s = s * math.log(2)

    start = 0.0 if fault == "m is 0" else -math.inf
    m = torch.full((*s.shape[:-1], 1), start, dtype=stat)
    l, acc = torch.zeros_like(m), torch.zeros((*s.shape[:-1], v.shape[-1]), dtype=stat)
    parts = []
    for a in range(0, lk, block):
        part = s[..., a : a + block]
        if fault == "ragged" and part.shape[-1] < block:
            break
        m_new = torch.maximum(m, part.amax(-1, keepdim=True))
        if fault == "no max":
            m_new = torch.zeros_like(m)
        m_ref = m_new if fault == "nan rows" else m_new.masked_fill(m_new == -math.inf, 0.0)
        p, alpha = (part - m_ref).exp(), (m - m_ref).exp()
        values = p @ v[:, :, a : a + block]
        parts.append((m_new, p.sum(-1, keepdim=True), values))
        l = l * alpha + p.sum(-1, keepdim=True)
        if fault == "coarse normalizer":
            l = l.to(query.dtype).to(stat)
        if fault == "padding" and part.shape[-1] < block:
            l = l + (block - part.shape[-1]) * (0 - m_ref).exp()
        acc = acc * (1 if fault == "not rescaled" else alpha) + values
        m = m_new
    if fault == "averaged" and parts:
        acc = torch.stack([x / n for _, n, x in parts]).mean(0)
        l = torch.ones_like(l)
    if fault == "merged" and parts:
        acc = torch.stack([x for _, _, x in parts]).sum(0)
        l = torch.stack([n for _, n, _ in parts]).sum(0)
    nan = fault in ("nan rows", "m is 0", "no max", "not itself", "float16 statistics")
    out = acc / (l if nan else l.masked_fill(l == 0, 1.0))
    if fault == "twice":
        out = out * 2
    if fault == "small exp wraps":
        out = torch.where((s < s.amax(-1, keepdim=True) - 88).any(-1, keepdim=True), -out, out)
    if fault == "not divided":
        out = acc
    if fault == "coarse":
        out = out.to(torch.bfloat16)
    out = out.to(query.dtype)
    if fault == "other row":
        out = out[:, :, :1].expand_as(out)
    if fault == "unwritten":
        whole, used = out, torch.full_like(out, 7.0)
        del used  # torch.empty gives this memory out again
        out = torch.empty_like(whole)
        out[:, :, : lq - 1] = whole[:, :, : lq - 1]
    if fault == "raises":
        raise RuntimeError("block size must divide Lk")
    lse = (m + l.log())[..., 0].float()
    if query.dtype == torch.float64:
        lse = lse.double()
    lse = {
        "lse base 2": lse * math.log2(math.e),
        "lse without max": l.log()[..., 0].float(),
        "lse times 2": lse + math.log(2),
        "coarse lse": lse * (1 + 2**-10),
    }.get(fault, lse)
    return out, lse


def subject(fault: str, dtype: str = "float32", **declared: Any) -> Subject:
    def fn(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
        attn_mask: torch.Tensor | None = None, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False, block: int = 16,
    ) -> Any:  # fmt: skip
        return flash(
            query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale,
            enable_gqa=enable_gqa, fault=fault, block=block,
        )  # fmt: skip

    runner = InProcess(Kernel(fn, name="flash", **declared))
    return Subject(runner, runner.start(), Space(dtype=dtype))


def explained(
    fault: str,
    problem: Problem,
    law: str = "agreement",
    others: Mapping[str, Subject] | None = None,
    **declared: Any,
) -> Explanation:
    kernel = subject(fault, problem.dtype, **declared)
    rule: Law = LAWS[law]
    config = kernel.target.configs[0]
    check = rule.check(kernel.case(problem, config))
    assert check.failed, f"{fault} is not caught by {law}: {check}"
    found = explain(
        kernel, rule, problem, config, check, example_id="fc-7k2m9q",
        command="flashcheck gate flash --dtype float32", seed=7, other_dtypes=others,
    )  # fmt: skip
    print(found.text)
    assert all(len(line) <= 100 for line in found.text.splitlines())
    assert len(found.contrast) <= MAX_LINES
    assert "array(" not in found.text
    return found


# The scores of a problem with head size 1, q = 1 and scale 1 are the elements of k.
ONE = Problem(dim=1, dim_v=1, scale=1.0, q=Fill(level=1.0))
LATE = replace(ONE, len_k=32, k=Fill("step", level=4.0, at=16), v=Fill("step", level=1.0, at=16))
MASKED = Mask(hides="row", amount=1)


def cases() -> Iterator[tuple[str, Problem, str]]:
    """(fault, problem, a regular expression for the sentence)."""
    one = Fill(level=1.0)
    yield (
        "no max",
        replace(ONE, k=Fill(level=89.0), v=one),
        r"exceeds 88.72 \(exp overflows in float32\)",
    )
    yield (
        "no max", replace(ONE, k=Fill(level=-110.0), v=one),
        r"below -103.97 .*: the maximum is not subtracted",
    )  # fmt: skip
    yield (
        "m is 0", replace(ONE, k=Fill(level=-104.0), v=one),
        r"below -103.97 \(exp underflows to 0 in float32\): a running maximum that starts at 0",
    )  # fmt: skip
    yield (
        "not rescaled", replace(LATE, v=one),
        r"Keys 0 to 15 weigh 54.6 times too much \(exp of 4, .*\) in query 0: .* not rescaled",
    )  # fmt: skip
    yield "merged", LATE, r"Keys 0 to 15 weigh 54.6 times too much \(exp of 4.*not rescaled"
    noisy = replace(LATE, k=replace(LATE.k, noise="normal", spread=1.0))
    yield (
        "averaged",
        noisy,
        r"keys 0 to 15 and keys 16 to 31 weigh 1/2 each .* averaged, not merged",
    )
    yield (
        "ragged", replace(ONE, len_k=33, v=Fill("spike", level=1.0, at=32)),
        "Output is missing the contribution of key 32",
    )  # fmt: skip
    yield (
        "ragged", replace(ONE, v=one),
        "Output is 0 with 1 key; with 100 keys it takes in all but keys 96 to 99",
    )  # fmt: skip
    causal = replace(ONE, len_q=1, len_k=2, is_causal=True, v=Fill("spike", level=1.0, at=-1))
    yield "sees next", causal, r"The causal mask lets query i see key i \+ 1"
    yield (
        "not itself", replace(causal, len_q=2, v=Fill("spike", level=1.0, at=1)),
        "Query i does not see its own key i under the causal mask",
    )  # fmt: skip
    yield (
        "not itself", replace(causal, len_k=1, v=one),
        "Query i does not see its own key i under the causal mask",
    )  # fmt: skip
    yield "sees next", replace(causal, v=one), r"The causal mask lets query i see key i \+ 1"
    yield "causal ignored", replace(causal, len_k=5), "is_causal is ignored"
    yield "bottom right", replace(causal, len_k=3), "aligned bottom-right instead of top-left"
    yield "bottom right", causal, "aligned bottom-right instead of top-left"
    grouped = Problem(heads=4, kv_heads=2, len_k=3, dim=8, dim_v=8, **NOISE)
    yield "gqa", grouped, r"Query head \d reads key head \d instead of \d \(h modulo the 2 key"
    yield (
        "gqa values", replace(grouped, heads=2),
        r"Query head \d reads value head \d instead of \d",
    )  # fmt: skip
    equal = replace(grouped, q=Fill(), k=Fill())
    yield "gqa", equal, r"Query head \d reads value head \d instead of"
    masked = Problem(len_q=3, len_k=4, dim=2, dim_v=2, mask=MASKED, v=Fill(level=1.0))
    yield "nan rows", masked, "Output is NaN in query 1, which sees no key, where it should be 0"
    yield "finite mask", replace(masked, v=NORMAL), "the mean of all values, hidden ones too"
    tail = replace(masked, mask=Mask(hides="tail", amount=2), v=Fill("spike", level=1.0, at=-1))
    yield "one hidden key", tail, r"Query \d also takes in key 3, which the mask hides"
    yield "mask inverted", tail, "attn_mask is turned around"
    low = replace(
        tail, len_q=1, len_k=2, dim=1, mask=Mask(hides="tail", amount=1), q=Fill(level=-200.0),
        k=Fill(level=100.0),
    )  # fmt: skip
    yield "finite mask", low, "Query 0 also takes in key 1, which the mask hides"
    of_heads = Problem(heads=2, dim=1, dim_v=1, mask=Mask(hides="tail", per_head=True), v=one)
    yield "heads swap masks", of_heads, "Head 0 uses the mask of head 1"
    yield "mask inverted", of_heads, "attn_mask is turned around"
    of_batches = replace(of_heads, batch=2, mask=Mask(hides="tail", per_batch=True))
    yield "batches swap masks", of_batches, "Batch 0 uses the mask of batch 1"
    yield (
        "nan rows", replace(masked, len_k=17, mask=Mask(hides="head", amount=16)),
        r"every row whose first 16 keys are hidden",
    )  # fmt: skip
    yield "twice", replace(ONE, v=one), "weights of query 0 sum to 2 instead of 1"
    yield "not divided", replace(ONE, len_k=3, v=one), r"not divided by the normalizer \(3\)"
    yield (
        "padding", replace(ONE, len_k=11, v=one),
        r"sum to 0.688 .* as if 5 more keys with score 0 joined the normalizer \(16 keys in all",
    )  # fmt: skip
    rows = Problem(len_q=4, len_k=6, dim=8, dim_v=8, **NOISE)
    yield "other row", rows, r"Query \d has the weights of query 0"
    half = Problem(dtype="float16", dim=1, dim_v=1, scale=1.0, len_k=4, v=Fill("stairs", level=1.0))
    near = Fill(level=6.0, noise="normal", spread=0.05)
    yield "exp2", rows, r"scores times ln\(2\): exp2 is used where exp is meant"
    yield "scale ignored", replace(rows, scale=1.0), r"1/sqrt\(D\): scale is ignored"
    yield "abs scale", replace(rows, scale=-0.5), "the scale's absolute value"
    yield "coarse", rows, r"too coarse \(about 2\^-\d+; one rounding is 2\^-24 in float32"
    yield (
        "float16 statistics",
        replace(half, scale=1.0, q=Fill(level=300.0), k=Fill(level=300.0)),
        r"NaN in query 0, where some \|q.k\| exceeds 65504, the largest finite float16",
    )  # fmt: skip
    yield (
        "float16 statistics", replace(half, q=Fill(level=10.01), k=near),
        "close to those of scores rounded to float16",
    )  # fmt: skip
    far = replace(ONE, len_k=2, scale=1.0, q=one, k=Fill("spike", level=90.0, at=-1), v=one)
    yield (
        "small exp wraps", far,
        "whose largest score exceeds 88.72, and right where all of its scores are that large",
    )  # fmt: skip
    yield "no max", far, r"exceeds 88.72 \(exp overflows in float32\): the maximum is not subtr"
    wide = Problem(dtype="bfloat16", len_k=2)
    for level in (1e6, -1e6, 1e-9):
        yield "values in float16", replace(wide, v=Fill(level=level)), "V converted to float16"
    yield "raises", ONE, "The kernel raises RuntimeError: block size must divide Lk"
    yield "lse base 2", replace(rows, len_q=1), "lse is 1.4427 times what it should be: base 2"
    yield "lse without max", replace(ONE, len_k=2, k=one), "lse lacks the row maximum"
    yield "lse times 2", replace(ONE, len_k=3), r"lse is too large by 0.693 \(ln 2\)"
    slight = replace(ONE, k=Fill(level=8.0))
    yield "coarse lse", slight, r"lse is too large by 0.0078\d* in query 0"
    yield (
        "ragged",
        replace(ONE, len_k=17, v=Fill()),
        "lse is too small by 0.0606, the weight of one",
    )


CASES = list(cases())


@pytest.mark.parametrize(
    ("fault", "problem", "expected"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)]
)
def test_the_sentence_names_the_fault(fault: str, problem: Problem, expected: str) -> None:
    found = explained(fault, problem)
    assert re.search(expected, found.sentence), found.sentence
    # The sentence is the first line of the block, below its rule.
    assert found.text.splitlines()[1].startswith(found.sentence[:60])


def test_a_mask_that_hides_nothing_is_not_turned_around() -> None:
    problem = Problem(len_k=4, dim=1, dim_v=1, mask=Mask(), v=Fill("spike", level=1.0, at=0))
    found = explained("later half with a mask", problem)
    assert "turned around" not in found.text


def test_right_values_are_not_blamed_for_weights_that_are_wrong_together() -> None:
    """Each weight is within its bound of bfloat16, and all of them are too small."""

    def fn(query: Any, key: Any, value: Any) -> Any:
        return flash(query, key, value, fault="coarse normalizer", block=2)[0]

    runner = InProcess(Kernel(fn, name="flash"))
    kernel = Subject(runner, runner.start(), Space(dtype="bfloat16"))
    ones, spike = Fill(level=1.0), Fill("spike", level=1.0)
    noise = Fill(noise="positive", spread=1.0)
    problem = Problem(dtype="bfloat16", heads=2, kv_heads=2, len_k=23, q=ones, k=spike, v=noise)
    case = kernel.case(problem)
    check = LAWS["agreement"].check(case)
    assert check.failed
    said = diagnose(case, LAWS["agreement"], check)
    assert "the normalizer is too large by a factor of 1.01" in said


def test_effective_weights_are_the_kernels_own() -> None:
    case = subject("not rescaled").case(replace(LATE, v=Fill(level=1.0)))
    weights = effective_weights(case, (0, 0, 0))
    exact = case.attention().p[0, 0, 0]
    assert weights is not None
    assert weights[:16] == pytest.approx(exact[:16] * math.exp(4), rel=1e-4)
    assert weights[16:] == pytest.approx(exact[16:], rel=1e-4)
    assert effective_weights(subject("").case(replace(LATE, len_k=129)), (0, 0, 0)) is None


def test_hidden_keys_are_measured_too() -> None:
    problem = Problem(len_k=4, mask=Mask(hides="tail", amount=2), v=Fill(level=1.0))
    weights = effective_weights(subject("one hidden key").case(problem), (0, 0, 0))
    assert weights == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])


ROWS = Problem(len_q=4, len_k=6, dim=8, dim_v=8, **NOISE)


@pytest.mark.parametrize(
    ("law", "fault", "problem", "expected"),
    [
        ("constant_v", "twice", ROWS, r"weights of query \d sum to 2 instead of 1"),
        ("finite", "no max", replace(ONE, k=Fill(level=89.0)), r"exceeds 88.72"),
        ("poison_output", "unwritten", ROWS, "never written"),
        ("key_permutation", "ragged", replace(ROWS, len_k=20), "keys 16 to 19"),
        ("key_doubling", "ragged", replace(ONE, len_k=8, v=Fill(level=1.0)), "in all but keys 96"),
    ],
)
def test_other_laws_are_explained_by_their_wrong_result(
    law: str, fault: str, problem: Problem, expected: str
) -> None:
    found = explained(fault, problem, law)
    assert re.search(expected, found.sentence), found.sentence


@pytest.mark.parametrize(
    ("fault", "problem", "expected"),
    [
        ("bottom right", replace(ROWS, is_causal=True), 'causal_alignment="bottom_right"'),
        ("lse base 2", ROWS, 'lse_base="2"'),
        ("nan rows", replace(ROWS, mask=MASKED), 'masked_rows="nan"'),
        ("abs scale", replace(ROWS, scale=-0.5), "positive_scale=True"),
        ("tf32", ROWS, 'contract=flashcheck.Contract(qk="tf32")'),
    ],
)
def test_hints_name_the_declaration(fault: str, problem: Problem, expected: str) -> None:
    found = explained(fault, problem)
    assert any(expected in hint for hint in found.hints), found.hints


def test_no_promise_is_offered_where_hidden_values_leak() -> None:
    assert explained("finite mask", replace(ROWS, mask=MASKED)).hints == ()


def test_no_positive_scale_is_offered_where_the_same_scores_fail_too() -> None:
    """Scores above 2 come out NaN; a negative scale is one way to reach them."""

    def fn(query: Any, key: Any, value: Any, *, scale: float | None = None) -> Any:
        out, _ = flash(query, key, value, scale=scale)
        factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return out.masked_fill((query @ key.mT * factor > 2).any(-1, keepdim=True), math.nan)

    runner = InProcess(Kernel(fn))
    kernel = Subject(runner, runner.start(), Space())
    shown = [replace(ROWS, len_q=1, len_k=2, scale=s, seed=n) for n in range(40) for s in (-1, 1)]
    for down, up in zip(shown[::2], shown[1::2], strict=True):
        check = LAWS["agreement"].check(kernel.case(down))
        if check.failed and not LAWS["agreement"].check(kernel.case(up)).failed:
            assert hints(kernel.case(down), LAWS["agreement"], check) == ()
            return
    raise AssertionError("no problem fails with the negative scale alone")


def test_a_failure_that_does_not_come_again_has_no_hint() -> None:
    """Two wrong results, and right ones from then on, whatever is declared."""
    calls = iter([1.5, 1.5])

    def fn(query: Any, key: Any, value: Any) -> Any:
        return flash(query, key, value)[0] * next(calls, 1.0)

    runner = InProcess(Kernel(fn))
    started = runner.start()
    calls = iter([1.5, 1.5])
    case = Subject(runner, started, Space()).case(ROWS)
    check = LAWS["agreement"].check(case)
    assert check.failed
    assert hints(case, LAWS["agreement"], check) == ()
    assert next(calls, None) is None


@pytest.mark.parametrize("fault", ["sees next", "causal ignored"])
def test_no_alignment_is_offered_for_other_masks(fault: str) -> None:
    assert explained(fault, replace(ROWS, len_q=1, is_causal=True)).hints == ()


def test_a_declared_kernel_fails_no_more() -> None:
    kernel = subject("bottom right", causal_alignment="bottom_right")
    assert not LAWS["agreement"].check(kernel.case(replace(ROWS, is_causal=True))).failed


def test_contrast_over_keys_dtypes_and_configs() -> None:
    problem = replace(ONE, len_k=33, v=Fill("spike", level=1.0, at=32))
    declared: dict[str, Any] = {"configs": {"block_16": {"block": 16}, "block_11": {"block": 11}}}
    kernel = subject("ragged", **declared)
    check = LAWS["agreement"].check(kernel.case(problem, "block_16"))
    others = {"float64": subject("ragged", "float64", **declared)}
    lines = contrast(kernel, LAWS["agreement"], problem, "block_16", check, other_dtypes=others)
    assert "passes with 32 and 48 keys; fails with 33" in lines[0]
    assert "passes with config block_11; fails with block_16" in lines
    assert "fails in float64 too" in lines
    assert "fails the same on a second run" in lines


def test_no_length_is_named_where_chance_decides() -> None:
    """One key in ten is lost wherever it is: the number of keys has nothing to do with it."""

    def fn(query: Any, key: Any, value: Any) -> Any:
        lost = (key > 1.3).any(-1, keepdim=True)
        return flash(query, key, value.masked_fill(lost, 0.0))[0]

    runner = InProcess(Kernel(fn))
    kernel, law = Subject(runner, runner.start(), Space()), LAWS["agreement"]
    found = 0
    for seed in range(40):
        problem = replace(ROWS, len_q=1, len_k=9, dim=1, dim_v=1, seed=seed)
        shorter, longer = (law.check(kernel.case(replace(problem, len_k=n))) for n in (8, 10))
        check = law.check(kernel.case(problem))
        if check.failed and not shorter.failed:
            found += 1
            lines = contrast(kernel, law, problem, None, check)
            assert longer.failed or not any("with 9 keys" in line for line in lines), lines
    assert found


def test_contrast_keeps_to_its_runs() -> None:
    kernel = subject("ragged")
    calls = 0
    submit = kernel.runner.submit

    def count(call: Any) -> None:
        nonlocal calls
        calls += call.times
        submit(call)

    kernel.runner.submit = count  # type: ignore[method-assign]
    contrast(kernel, LAWS["agreement"], replace(grid(), len_k=33, is_causal=False), None)
    assert 5 < calls <= 40


def grid() -> Problem:
    return replace(ROWS, batch=2, heads=4, kv_heads=2, is_causal=True, scale=0.5, layout="padded")


def test_a_sentence_comes_even_without_a_result() -> None:
    def dies(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return torch.zeros(1)

    runner = InProcess(Kernel(dies))
    kernel = Subject(runner, runner.start(), Space(options=frozenset()))
    check = LAWS["agreement"].check(kernel.case(Problem()))
    found = explain(
        kernel, LAWS["agreement"], Problem(), None, check, example_id="fc-a", command="flashcheck"
    )
    assert found.sentence.startswith("The result has the wrong form: out has shape [1]")


def test_changes_of_inputs_and_of_results_are_told() -> None:
    def writes(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        out = flash(query, key, value)
        query += 1
        return out

    def wavers(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return flash(query, key, value)[0] + 1e-3 * torch.rand(1)

    for fn, law, expected in (
        (writes, "inputs_unmodified", "The inputs are changed: .* memory of q"),
        (wavers, "repeat", "Two equal calls give different results"),
    ):
        runner = InProcess(Kernel(fn))
        kernel = Subject(runner, runner.start(), Space(options=frozenset()))
        check = LAWS[law].check(kernel.case(ROWS))
        found = explain(
            kernel, LAWS[law], ROWS, None, check, example_id="fc-a", command="flashcheck"
        )
        assert re.search(expected, found.sentence), found.text


def test_no_rounded_scale_is_offered_where_it_rounds_nothing() -> None:
    """An lse that is off is so with any scale, one that is a power of two too."""
    nine = Fill(level=9.0)
    half = Problem(dtype="bfloat16", len_k=3, dim=8, dim_v=1, q=nine, k=nine, v=NORMAL)
    found = explained("coarse lse", half)
    assert not any("scale_in_input_dtype" in hint for hint in found.hints), found.text
    found = explained("scaled query", half)
    assert any("scale_in_input_dtype" in hint for hint in found.hints), found.text


def test_an_alignment_of_few_queries_is_no_declaration() -> None:
    def fn(query: Any, key: Any, value: Any, *, is_causal: bool = False) -> Any:
        few = "bottom right" if query.shape[2] < 8 else ""
        return flash(query, key, value, is_causal=is_causal, fault=few)

    runner = InProcess(Kernel(fn))
    case = Subject(runner, runner.start(), Space()).case(replace(ROWS, is_causal=True))
    check = LAWS["agreement"].check(case)
    assert check.failed
    assert not any("causal_alignment" in hint for hint in hints(case, LAWS["agreement"], check))


def test_no_contract_is_offered_that_leaves_other_failures() -> None:
    """TF32 explains this failure; it does not make a NaN elsewhere right."""
    kernel, law = subject("tf32"), LAWS["agreement"]
    case = kernel.case(ROWS)
    check = law.check(case)
    assert any("tf32" in hint for hint in hints(case, law, check, beside=[(law, case)]))
    broken = subject("raises").case(ROWS)
    assert hints(case, law, check, beside=[(law, case), (law, broken)]) == ()


def test_a_contract_that_fits_is_offered() -> None:
    found = explained("coarse", replace(ROWS, len_q=1))
    assert all("Contract" in hint for hint in found.hints)
    assert Contract() == Kernel(flash).contract
