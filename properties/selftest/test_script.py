"""Scripts: they fail without flashcheck where the gate failed, and pass on the fixed kernel."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.deterministic
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import flashcheck
from flashcheck import arena, literals
from flashcheck.arena import NUMPY_DTYPES
from flashcheck.bits import pack_named
from flashcheck.case import Case
from flashcheck.cli import main
from flashcheck.examples import Example, of_tensors, save
from flashcheck.fills import Fill
from flashcheck.inputs import LAYOUTS, Inputs
from flashcheck.kernel import Kernel, Target
from flashcheck.law import laws
from flashcheck.loading import describe
from flashcheck.masks import Mask
from flashcheck.oracle import float64
from flashcheck.problem import Problem
from flashcheck.script import Script, script
from flashcheck.statements import ScriptError
from flashcheck.strategies import MASK_FORMS, Space
from flashcheck.trace import trace
from flashcheck.verdict import Check, Verdict, Worst
from flashcheck.worker import InProcess

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

NORMAL = Fill(noise="normal", spread=1.0)
LAWS = {law.name: law for law in laws()}

KERNEL = """
    import ctypes
    import math
    import torch

    CALLS = 0

    def behind(tensor):  # the float32 after its last element
        return ctypes.c_float.from_address(tensor.data_ptr() + 4 * tensor.numel())

    def attention(query, key, value, *, attn_mask=None, is_causal=False, scale=None,
                  enable_gqa=False):
        global CALLS
        CALLS += 1
        q, k, v = query.double(), key.double(), value.double()
        if enable_gqa:
            group = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        {before}
        s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -math.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            s = s.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            s = s + attn_mask.double()
        {scores}
        lse = s.logsumexp(-1).to(torch.float64 if query.dtype == torch.float64 else torch.float32)
        out = (s.softmax(-1).nan_to_num(0.0) @ v).to(query.dtype)
        {after}
        return {result}
    """


def code(
    before: str = "pass", scores: str = "pass", after: str = "pass", result: str = "out, lse"
) -> str:
    text = textwrap.dedent(KERNEL)
    return text.format(before=before, scores=scores, after=after, result=result)


RIGHT = code()

NORMALS = Problem(
    heads=2, kv_heads=2, len_q=4, len_k=5, dim=8, dim_v=8, q=NORMAL, k=NORMAL, v=NORMAL, seed=5
)

WRONG: dict[str, tuple[str, Problem, str]] = {
    # A factor that only a bound finds.
    "agreement float16": (
        code(after="out = (out.double() * 1.01).to(query.dtype)"),
        replace(NORMALS, dtype="float16"), "agreement",
    ),
    "agreement float64": (
        code(after="out = out * (1 + 1e-12)"), replace(NORMALS, dtype="float64"), "agreement",
    ),
    "agreement lse": (code(after="lse = lse * 1.001"), NORMALS, "agreement"),
    "agreement gqa causal scale": (
        code(scores="s[..., 0] += 0.5"),
        replace(NORMALS, heads=4, kv_heads=2, is_causal=True, scale=-0.3), "agreement",
    ),
    "agreement mask": (
        code(scores="s = s.nan_to_num(0.0, neginf=-1.0)"),
        replace(NORMALS, dtype="bfloat16", mask=Mask(hides="tail", amount=2)), "agreement",
    ),
    "agreement bias": (
        code(scores="s = s.clamp(max=2.0)"),
        replace(NORMALS, mask=Mask(kind="additive", rank=2, bias=Fill(noise="normal", spread=8.0))),
        "agreement",
    ),
    "agreement large": (
        code(after="out = out * 1.01"), replace(NORMALS, len_k=257, dim=64), "agreement",
    ),
    "finite": (
        code(after="out = out / (out.abs() > 0.05)"), replace(NORMALS, v=Fill(level=0.0)), "finite",
    ),
    "repeat": (
        code(after="out = out * (1 + CALLS % 2 * 0.01)"), replace(NORMALS, dtype="bfloat16"),
        "repeat",
    ),
    "repeat lse": (code(after="lse = lse + CALLS % 2"), NORMALS, "repeat"),
    "inputs_unmodified": (code(after="key[..., 0] += 1"), NORMALS, "inputs_unmodified"),
    "inputs_unmodified around": (
        code(after="behind(query).value += 1"),
        NORMALS, "inputs_unmodified",
    ),
    "poison_masked": (
        code(after="out = out + key.abs().amax() * 1e-3"),
        replace(NORMALS, mask=Mask(hides="tail", amount=2)), "poison_masked",
    ),
    "poison_memory": (
        code(after="out = out + 0 * behind(key).value"),
        NORMALS, "poison_memory",
    ),
    "poison_output": (
        code(after="new = torch.empty_like(out); new[..., 1:] = out[..., 1:]; "
             "out = torch.where(new.isnan(), new, out)"), NORMALS, "poison_output",
    ),
    "batch_independence": (
        code(after="out = out * (1 + 0.01 * (out.shape[0] > 1))"), replace(NORMALS, batch=3),
        "batch_independence",
    ),
    "head_independence": (
        code(before="v = v * 1.01 if v.shape[1] > 1 else v"), NORMALS, "head_independence",
    ),
    "query_independence": (
        code(after="out = out * (1 + 0.01 * (out.shape[2] > 3))"), NORMALS, "query_independence",
    ),
    "causal_prefix": (
        code(after="out = out * (1 + 0.01 * (out.shape[2] > 3))"),
        replace(NORMALS, is_causal=True), "causal_prefix",
    ),
    "strides": (
        code(before="k = k if key.is_contiguous() else k * 1.1"), replace(NORMALS, seed=8),
        "strides",
    ),
    "strides expanded": (
        code(before="k = k if key.is_contiguous() else k * 1.1"),
        replace(NORMALS, batch=2, layout="expanded_batch", dtype="float16"), "strides",
    ),
    "score_shift": (code(scores="s = s.clamp(max=4.0)"), replace(NORMALS, seed=6), "score_shift"),
    "score_shift lse": (
        code(after="lse = lse.clamp(max=4.0)"), replace(NORMALS, seed=7), "score_shift",
    ),
    "key_permutation": (code(scores="s[..., 0] += 1.0"), NORMALS, "key_permutation"),
    "key_doubling lse": (
        code(after="lse = lse + key.shape[2] * 0.1"), NORMALS, "key_doubling",
    ),
    "constant_v": (code(after="out = out * 1.01"), NORMALS, "constant_v"),
    "equal_scores": (code(scores="s[..., 0] += 1.0"), NORMALS, "equal_scores"),
    "one_hot": (code(scores="s = s.clamp(max=4.0)"), NORMALS, "one_hot"),
    "convexity": (code(after="out = out * 9"), NORMALS, "convexity"),
    "gqa_repeated_heads": (
        code(before="v = v * 1.1 if enable_gqa else v"),
        replace(NORMALS, heads=4, kv_heads=2), "gqa_repeated_heads",
    ),
    "neutral_options": (
        code(before="v = v * 1.1 if scale is None else v"), replace(NORMALS, seed=6),
        "neutral_options",
    ),
    "output form": (code(result="out.transpose(2, 3)"), NORMALS, "agreement"),
}  # fmt: skip


BLOCKED = ("flashcheck", "hypothesis", "ml_dtypes", "safetensors", "numpy")
"""What a script must do without."""

RUN_ALL = """
    import contextlib, io, json, os, runpy, sys, warnings
    warnings.simplefilter("ignore")
    sys.dont_write_bytecode = True
    sys.modules.update(dict.fromkeys(sys.argv[1].split(",")))
    sys.path.pop(0)
    for folder in sys.argv[2:]:
        os.chdir(folder)
        sys.path_importer_cache.clear()
        path, modules, said = list(sys.path), set(sys.modules), io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                runpy.run_path("repro.py", run_name="__main__")
            ended = "passed"
        except BaseException as error:
            ended = type(error).__name__
            said.write(str(error))
        print(json.dumps([ended, said.getvalue()]), flush=True)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if name in ("wrong", "right") or name.startswith("my"):
                del sys.modules[name]
        import torch
        torch.set_deterministic_debug_mode("default")
        torch.utils.deterministic.fill_uninitialized_memory = True
    """


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("wrong", "declared"):
        sys.modules.pop(name, None)
    sys.path_importer_cache.clear()
    return tmp_path


def run_all(folders: list[Path]) -> list[tuple[str, str]]:
    """How repro.py of each folder ends, in one process that has torch and little else."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN_ALL), ",".join(BLOCKED), *map(str, folders)],
        text=True, capture_output=True, timeout=300, check=False,
    )  # fmt: skip
    ends = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(ends) == len(folders), done.stderr
    return [(ended, said) for ended, said in ends]


def fails(source: str, problem: Problem, name: str, spec: str = "wrong.py:attention") -> Example:
    """The example of a law that a kernel breaks on a problem."""
    return failure(source, problem, name, spec)[0]


def failure(
    source: str, problem: Problem, name: str, spec: str = "wrong.py:attention"
) -> tuple[Example, Target]:
    Path("wrong.py").write_text(source)
    runner = InProcess(spec)
    target = runner.start()
    space = Space(dtype=problem.dtype, dense=not problem.seqlens_q)
    case = Case(runner, target, problem, target.configs[0], space=space)
    assert LAWS[name].applies(case)
    check = LAWS[name].check(case)
    assert check.failed, check
    example = Example(
        problem=problem, property=name, target=spec, name=target.name, check=check,
        config=target.configs[0], dense=space.dense,
    )  # fmt: skip
    return example, target


def test_reproduces(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fails on the kernel for which it was written, and passes on the right one."""
    folders = [folder / str(number) for number in range(len(WRONG))]
    for place, wrong in zip(folders, WRONG.values(), strict=True):
        place.mkdir()
        monkeypatch.chdir(place)
        made = script(*failure(*wrong), "repro.safetensors")
        Path("repro.py").write_text(made.text)
        if made.tensors:
            Path("repro.safetensors").write_bytes(pack_named(made.tensors))
        assert "import flashcheck" not in made.text
    failed = dict(zip(WRONG, run_all(folders), strict=True))
    for place in folders:
        (place / "wrong.py").write_text(RIGHT)
    fixed = dict(zip(WRONG, run_all(folders), strict=True))
    assert {n: end for n, end in failed.items() if end[0] != "AssertionError"} == {}
    assert {n: end for n, end in fixed.items() if end[0] != "passed"} == {}


SEQUENCES = """
    import torch

    from flashcheck import Kernel

    def plain(q, k, v):
        s = q.double() @ k.double().mT * q.shape[-1] ** -0.5
        return (s.softmax(-1) @ v.double()).to(q.dtype)

    def attention(query, key, value, *, cu_seqlens_q=None, cu_seqlens_k=None, block_table=None,
                  cache_seqlens=None):
        {query}
        out = torch.empty(*query.shape[:3], value.shape[-1], dtype=query.dtype)
        if block_table is not None:
            for b, n in enumerate(cache_seqlens.tolist()):
                page = block_table[b].long()[: -(-n // key.shape[1])]
                {page}
                k, v = (x[page].flatten(0, 1)[:n].transpose(0, 1)[None] for x in (key, value))
                out[b : b + 1] = plain(query[b : b + 1], k, v)
            return {out}
        {tokens}
        ends = zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:])
        for a, b, c, d in ends:
            {ends}
            out[:, :, a:b] = plain(query[:, :, a:b], key[:, :, c:d], value[:, :, c:d])
        return {out}

    kernel = {kernel}
    """

PACKED = replace(NORMALS, len_q=6, len_k=9, seqlens_q=(2, 0, 4), seqlens_k=(4, 1, 4))
PAGED = replace(NORMALS, batch=2, len_k=12, seqlens_k=(5, 8), page=3, spare=2, seed=11)


FLAT = (
    "page = block_table.as_strided(block_table.shape, (block_table.shape[1], 1))"
    "[b, : len(page)].long()"
)
"""The table read as if it were contiguous."""


def sequences(order: str, page: str = "pass", ends: str = "pass") -> str:
    turned = order == "bshd"
    return textwrap.dedent(SEQUENCES).format(
        query="query = query.transpose(1, 2)" if turned else "pass",
        tokens="key, value = key.transpose(1, 2), value.transpose(1, 2)" if turned else "pass",
        out="out.transpose(1, 2)" if turned else "out",
        kernel='Kernel(attention, layout="bshd")' if turned else "attention",
        page=page, ends=ends,
    )  # fmt: skip


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@pytest.mark.parametrize(
    ("problem", "name", "bug"),
    [
        (PACKED, "agreement", {"ends": "d = d + (a == 0)"}),
        (PACKED, "sequence_independence", {"ends": "c = c - int(c > 3)"}),
        (PAGED, "agreement", {"page": "page[1:] = (page[:1] + 1) % len(key)"}),
        (replace(PAGED, layout="padded"), "agreement", {"page": "page = page.flip(0)"}),
        (PAGED, "poison_memory", {"page": "value = value + 0 * key.sum()"}),
        (PAGED, "inputs_unmodified", {"page": "block_table[b, -1] = block_table[b, 0]"}),
        (replace(PAGED, layout="strided"), "agreement", {"page": FLAT}),
    ],
    ids=["packed", "packed-alone", "paged", "paged-padded", "paged-poison", "table-written",
         "table-flat"],
)  # fmt: skip
def test_sequences(
    problem: Problem, name: str, bug: dict[str, str], order: str, folder: Path
) -> None:
    example, target = failure(sequences(order, **bug), problem, name, "wrong.py:kernel")
    made = script(example, target, "repro.safetensors")
    Path("repro.py").write_text(made.text)
    assert not made.tensors
    for source, ends in ((sequences(order, **bug), "AssertionError"), (sequences(order), "")):
        Path("wrong.py").write_text(source)
        done = subprocess.run(
            [sys.executable, "repro.py"], text=True, capture_output=True, timeout=60, check=False
        )
        assert done.returncode == (1 if ends else 0), made.text + done.stderr
        assert done.stderr.strip().endswith(ends)


def test_command(folder: Path) -> None:
    """`show --script PATH` writes what ends with an AssertionError; without PATH it prints it."""
    example = fails(*WRONG["agreement float16"])
    save(example)
    done = show(example.id, "--script", "out/repro.py")
    assert done == (0, "wrote out/repro.py\n")
    assert show(example.id, "--script") == (0, Path("out/repro.py").read_text())
    ended = subprocess.run(
        [sys.executable, "out/repro.py"], text=True, capture_output=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    assert "assert error <= bound\n" in ended.stderr
    assert ended.stderr.strip().endswith("AssertionError")
    assert ended.stdout.startswith("got ")
    (folder / "other.py").write_text(RIGHT)
    code, text = show(example.id, "--script", "--kernel", "other.py:attention")
    assert code == 0
    assert "from other import attention" in text


def show(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["show", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def test_refusals(folder: Path) -> None:
    """One line that says what to do."""
    example = fails(*WRONG["agreement large"])
    save(example)
    code, text = show(example.id, "--script")
    assert code == 2
    assert "give --script PATH" in text
    assert text.count("\n") == 1
    code, text = show(example.id, "--kernel", "wrong.py:attention")
    assert code == 2
    assert "--kernel goes with --script" in text
    assert show(example.id, "--script", "r.py") == (0, "wrote r.py and r.safetensors\n")
    passes = replace(example, check=Check("agreement", Verdict.PASS))
    target = describe(Kernel(lambda query, key, value: query))[1]
    with pytest.raises(ScriptError, match="never failed"):
        script(passes, target)
    with pytest.raises(ScriptError, match="no property 'newer'"):
        script(replace(example, property="newer"), target)
    (folder / "wrong.py").unlink()
    code, text = show(example.id, "--script")
    assert code == 2
    assert "no such file: wrong.py" in text


# -- the calls are those of the law -------------------------------------------------------


class Heard:
    """Stands for a kernel: remembers what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, torch.Tensor], dict[str, Any]]] = []

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
        tensors = {"q": q, "k": k, "v": v}
        if options.get("attn_mask") is not None:
            tensors["mask"] = options.pop("attn_mask")
        self.calls.append((tensors, options))
        out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype)
        return out, torch.zeros(q.shape[:3])


def play(made: Script, attention: Callable[..., Any]) -> None:
    """Execute a script with `attention` for its kernel; what it asserts is no matter."""
    text = made.text.replace("from heard import attention", "")
    variables: dict[str, Any] = {"attention": attention, "__file__": "repro.py"}
    if made.tensors:
        Path("repro.safetensors").write_bytes(pack_named(made.tensors))
    # A script is its process's own, and leaves torch's modes as it set them.
    deterministic: Any = torch.utils.deterministic
    mode, fill = torch.get_deterministic_debug_mode(), deterministic.fill_uninitialized_memory
    try:
        with contextlib.suppress(AssertionError):
            exec(compile(text, "repro.py", "exec"), variables)
    finally:
        torch.set_deterministic_debug_mode(mode)
        deterministic.fill_uninitialized_memory = fill


def expected_calls(example: Example, target: Target) -> list[tuple[Inputs, str]]:
    """What the law asks for where the comparison is, in order."""

    def case(runner: Any) -> Case:
        return Case(runner, target, example.problem, inputs=example.captured)

    traced = trace(LAWS[example.property], case, example.check)
    found = traced.comparison
    assert found is not None
    used = sorted({found.got.call} | ({found.other.call} if found.other else set()))
    return [(traced.calls[n].inputs, traced.calls[n].guard) for n in used]


def of_worst(name: str, problem: Problem, output: str = "out") -> Example:
    """An example of a law whose comparison was off at the first element."""
    index = (0, 0, 0, 0) if output == "out" else (0, 0, 0)
    exact = float64.attention(problem.inputs())
    expected = float((exact.out if output == "out" else exact.lse)[index])
    worst = Worst(output, index, expected + 1.0, expected, 1.0, 1e-3, 0.0)
    said = {"repeat": "nondeterministic", "poison_masked": "reads hidden keys",
            "poison_memory": "reads out of bounds", "poison_output": "output not written",
            "finite": f"{output} not finite"}  # fmt: skip
    symptom = said.get(name, f"{output} value")
    check = Check(name, Verdict.VIOLATION, math.inf, symptom, "it differs", worst)
    return Example(
        problem=problem, property=name, target="heard.py:attention", name="heard", check=check
    )


@st.composite
def outlines(draw: st.DrawFn) -> Problem:
    """Problems of every layout and mask form, and fills that need every kind of literal."""
    heads, kv_heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]))
    fills = st.one_of(
        st.sampled_from([NORMAL, Fill(level=-0.0), Fill(noise="special", spread=0.5)]),
        st.builds(
            Fill, st.sampled_from(["spike", "step", "stairs", "cycle", "alternate"]),
            level=st.sampled_from([1.0, -0.375]), base=st.sampled_from([0.0, -2.0]),
            at=st.integers(-3, 3), period=st.integers(1, 3),
            plants=st.sampled_from([(), (((0, 0, 1, 0), 0.5),)]),
        ),
    )  # fmt: skip
    mask = None
    if draw(st.booleans()):
        kind, dtype, rank, axes = draw(st.sampled_from(MASK_FORMS))
        mask = Mask(
            kind=kind, dtype=dtype, rank=rank,
            hides=draw(st.sampled_from(["tail", "holes", "row"])), amount=draw(st.integers(0, 3)),
            bias=draw(st.sampled_from([Fill(), NORMAL])),
            per_batch="b" in axes, per_head="h" in axes, per_query="q" in axes, per_key="k" in axes,
        )  # fmt: skip
    return Problem(
        dtype=draw(st.sampled_from(["float32", "float16", "bfloat16", "float64"])),
        batch=draw(st.integers(1, 3)), heads=heads, kv_heads=kv_heads,
        len_q=draw(st.integers(1, 5)), len_k=draw(st.sampled_from([0, 1, 2, 5, 17])),
        dim=draw(st.sampled_from([1, 8])), dim_v=draw(st.sampled_from([1, 8])),
        q=draw(fills), k=draw(fills), v=draw(fills), seed=draw(st.integers(0, 50)),
        scale=draw(st.sampled_from([None, 0.3])), is_causal=mask is None and draw(st.booleans()),
        mask=mask, layout=draw(st.sampled_from(LAYOUTS)),
    )  # fmt: skip


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@settings(
    max_examples=150, deadline=None, database=None, derandomize=True,
    phases=[Phase.generate], suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
)  # fmt: skip
@given(data=st.data())
def test_same_calls(order: Any, data: st.DataObject) -> None:
    """Values, strides, memory around and options are those with which the law calls a kernel."""
    name = data.draw(st.sampled_from(sorted(set(LAWS) - {"inputs_unmodified"})))
    problem = data.draw(outlines())
    output = "out" if name in ("constant_v", "convexity", "one_hot") else data.draw(
        st.sampled_from(["out", "lse"])
    )  # fmt: skip
    kernel = Kernel(reference, layout=order)
    target = replace(describe(kernel)[1], spec="heard.py:attention", wrapped=False)
    example = of_worst(name, problem, output)
    case = Case(InProcess(kernel), target, problem)
    # A law about the values that a row sees says nothing of one that sees none, or is beyond.
    judged = case.inputs.visible[0, 0, 0].any() and np.isfinite(case.exact_bound().lse[0, 0, 0])
    if not LAWS[name].applies(case) or not judged:
        return
    heard = Heard()
    play(script(example, target, "repro.safetensors"), heard)
    wanted = expected_calls(example, target)
    if name == "repeat":
        heard.calls = heard.calls[:1]
    assert len(heard.calls) == len(wanted)
    for (tensors, options), (x, guard) in zip(heard.calls, wanted, strict=True):
        none = {"attn_mask": None} if "attn_mask" in x.passed else {}
        assert options == x.options() | none
        compare(tensors, x, guard, order)


def reference(
    query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    raise AssertionError("only its signature counts")


def compare(tensors: dict[str, torch.Tensor], x: Inputs, guard: str, order: Any) -> None:
    plan = arena.plan(arena.key_of(x, order))
    assert {view.name for view in plan.views} == set(tensors)
    for view in plan.views:
        given, values = tensors[view.name], getattr(x, view.name)
        if order == "bshd" and view.name in arena.HEADED:
            values = values.swapaxes(1, 2)
        dtype = plan.storages[view.storage].dtype
        assert str(given.dtype) == f"torch.{dtype}"
        held = given.double().numpy() if dtype != "bool" else given.numpy()
        assert held.tobytes() == np.ascontiguousarray(values).tobytes()
        if given.numel():
            own = [s for s, n in zip(given.stride(), view.shape, strict=True) if n > 1]
            assert own == [s for s, n in zip(view.strides, view.shape, strict=True) if n > 1]
            if x.layout != "packed":
                assert (given.storage_offset() - view.offset) % 128 == 0
        if guard == "nan" and dtype != "bool":
            around = torch.empty(0, dtype=given.dtype).set_(given.untyped_storage())
            assert around[:128].isnan().all()
            assert around[-64:].isnan().all()


OPTIONED = replace(
    NORMALS, heads=4, kv_heads=2, alibi_slopes=Fill("stairs", level=0.5, base=0.25),
    sinks=Fill(level=1.5),
)  # fmt: skip


def optioned(
    query: Any, key: Any, value: Any, enable_gqa: bool = False, alibi_slopes: Any = None,
    sinks: Any = None, block_table: Any = None, cache_seqlens: Any = None,
    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
) -> Any:  # fmt: skip
    raise AssertionError("only its signature counts")


@pytest.mark.parametrize("order", ["bhsd", "bshd"])
@pytest.mark.parametrize("name", ["agreement", "poison_memory"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_same_options(layout: Any, name: str, order: Any) -> None:
    """Options lie in memory as they lay, and where NaN lay around them, it does."""
    kernel = Kernel(optioned, layout=order)
    target = replace(describe(kernel)[1], spec="heard.py:attention", wrapped=False)
    paged = replace(
        OPTIONED, batch=2, len_k=12, seqlens_k=(5, 8), page=3, spare=2, seed=11
    )  # fmt: skip
    packed = replace(OPTIONED, len_q=6, len_k=9, seqlens_q=(2, 0, 4), seqlens_k=(4, 1, 4))
    for problem in (OPTIONED, paged, packed):
        problem = replace(problem, layout=layout)
        example = of_worst(name, problem)
        heard = Heard()
        play(script(example, target, "repro.safetensors"), heard)
        wanted = expected_calls(example, target)
        assert len(heard.calls) == len(wanted)
        for (_, options), (x, guard) in zip(heard.calls, wanted, strict=True):
            plan = arena.plan(arena.key_of(x, order))
            for view in plan.views:
                if view.name not in x.option_tensors:
                    continue
                given = options[view.name]
                assert str(given.dtype) == f"torch.{plan.storages[view.storage].dtype}"
                assert given.tolist() == x.option_tensors[view.name].tolist()
                own = [s for s, n in zip(given.stride(), view.shape, strict=True) if n > 1]
                assert own == [s for s, n in zip(view.strides, view.shape, strict=True) if n > 1]
                assert (given.storage_offset() - view.offset) % 128 == 0
                if guard == "nan":
                    around = torch.empty(0, dtype=given.dtype).set_(given.untyped_storage())
                    first = around[:128].tolist()
                    if given.dtype == torch.int32:
                        assert {*first} == {arena.beside(x, view.name, "nan")}
                    else:
                        assert all(map(math.isnan, first))


# "int32" is that of options, which are written as lists.
@pytest.mark.parametrize("dtype", sorted({*NUMPY_DTYPES} - {"int32"}))
def test_literals(dtype: str) -> None:
    """Every bit of a dtype survives each way of writing it."""
    fmt = flashcheck.formats.FORMATS.get(dtype)
    for fill in (NORMAL, Fill(noise="special", spread=1.0), Fill("stairs", level=0.1), Fill()):
        for shape in ((1, 1, 2, 3), (1, 2, 33, 1), (2, 1, 40, 3), (1, 1, 0, 2)):
            if fmt is None:
                values: Any = Fill(noise="signs", spread=1.0).evaluate(
                    shape, flashcheck.formats.FORMATS["float32"], 3
                ) > 0  # fmt: skip
            else:
                values = fill.evaluate(shape, fmt, 3)
            lines = literals.assign("x", values, dtype, 2)
            assert lines is not None
            variables: dict[str, Any] = {"torch": torch, "math": math, "base64": base64}
            exec("\n".join([literals.BASE64, *lines]), variables)
            held = variables["x"]
            assert str(held.dtype) == f"torch.{dtype}"
            again = held.double().numpy() if dtype != "bool" else held.numpy()
            assert again.tobytes() == np.ascontiguousarray(values).tobytes()


def test_too_large() -> None:
    values = NORMAL.evaluate((1, 1, 200, 64), flashcheck.formats.FORMATS["float32"], 0)
    assert literals.assign("x", values, "float32", 2) is None


# -- how the kernel is found --------------------------------------------------------------


def written(spec: str, example: Example | None = None, **changes: Any) -> str:
    target = InProcess(spec).start()
    example = of_worst("agreement", NORMALS) if example is None else example
    return script(replace(example, target=spec), replace(target, **changes)).text


@pytest.mark.parametrize(
    ("spec", "statement"),
    [
        ("wrong.py:attention", "from wrong import attention"),
        ("sub/wrong.py:attention", 'sys.path.insert(0, "sub")'),
        ("my-kernel.py:attention", 'attention = runpy.run_path("my-kernel.py")["attention"]'),
        ("random.py:attention", 'attention = runpy.run_path("random.py")["attention"]'),
        ("torch.nn.functional:scaled_dot_product_attention",
         "from torch.nn.functional import scaled_dot_product_attention"),
        ("numpy_online", "from flashcheck.kernels.numpy_online import kernel"),
        ("torch_sdpa[math]", 'kernel = variants["math"]'),
        ("numpy_online+acc_not_rescaled", 'kernel = load("numpy_online+acc_not_rescaled")[0]'),
    ],
)  # fmt: skip
def test_kernel(spec: str, statement: str, folder: Path) -> None:
    """It is imported as a user would; what only flashcheck can load says so. All of them run."""
    (folder / "sub").mkdir()
    for name in ("wrong.py", "sub/wrong.py", "my-kernel.py", "random.py"):
        (folder / name).write_text(RIGHT)
    text = written(spec)
    assert statement in text
    own = "imports flashcheck" in text.split('"""')[1]
    assert own == ("from flashcheck" in text)
    variables: dict[str, Any] = {"__file__": "repro.py"}
    exec(compile(text, "repro.py", "exec"), variables)
    assert variables["error"] <= variables["bound"]


def test_declared(folder: Path) -> None:
    """Configurations and a base-2 lse come from the declaration."""
    (folder / "declared.py").write_text(
        RIGHT.replace("return out, lse", "return out, lse / math.log(2)").replace(
            "enable_gqa=False):", "enable_gqa=False, block=0):\n    assert block == 16"
        )
        + "\nimport flashcheck\n"
        "kernel = flashcheck.Kernel(attention, lse_base='2', configs={'small': {'block': 16}})\n"
    )
    example = replace(of_worst("agreement", NORMALS, "lse"), config="small")
    text = written("declared.py:kernel", example)
    assert '**kernel.configs["small"]' in text
    assert "so that it imports flashcheck" in text
    variables: dict[str, Any] = {"__file__": "repro.py"}
    exec(compile(text, "repro.py", "exec"), variables)
    assert variables["error"] <= 1e-6


def test_devices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors go to the example's device; Triton on a CPU is interpreted, which is said."""
    (folder / "wrong.py").write_text(RIGHT)
    on_gpu = written("wrong.py:attention", replace(of_worst("agreement", NORMALS), device="cuda:0"))
    assert 'q, k, v = (t.to("cuda:0") for t in (q, k, v))' in on_gpu
    assert "set_num_threads" not in on_gpu
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    triton = written("wrong.py:attention", interpreted=True)
    exec(compile(triton, "repro.py", "exec"), {"__file__": "repro.py"})
    assert os.environ["TRITON_INTERPRET"] == "1"
    assert triton.index('os.environ["TRITON_INTERPRET"] = "1"') < triton.index("import torch")
    assert "bfloat16" in triton.split("TRITON_INTERPRET")[0]


def test_captured(folder: Path) -> None:
    """Captured tensors are written out as any others."""
    x = NORMALS.inputs().with_(layout="strided")
    problem, captured = of_tensors(x)
    (folder / "wrong.py").write_text(RIGHT)
    example = replace(of_worst("agreement", NORMALS), problem=problem, captured=captured)
    text = written("wrong.py:attention", example)
    assert "captured tensors" in text
    variables: dict[str, Any] = {"__file__": "repro.py"}
    exec(compile(text, "repro.py", "exec"), variables)
    assert np.array_equal(variables["k"].double().numpy(), x.k)
    assert variables["k"].stride() == (160, 80, 16, 2)
    assert variables["error"] <= 1e-6


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (
            Check("agreement", Verdict.CRASH, math.inf, "raises ValueError", "bad shape"),
            "bad shape",
        ),
        (Check("agreement", Verdict.TIMEOUT, math.inf, "timeout", "no result"), "TIMEOUT"),
        (Check("agreement", Verdict.VIOLATION, math.inf, "masked rows", "not NaN"), "replay"),
    ],
)
def test_no_comparison(check: Check, said: str, folder: Path) -> None:
    """The call is made; what cannot be asserted is said."""
    (folder / "wrong.py").write_text(
        RIGHT.replace("s = q @", "raise ValueError('bad shape')\n    s = q @")
    )
    text = written("wrong.py:attention", replace(of_worst("agreement", NORMALS), check=check))
    assert said in text
    with pytest.raises(ValueError, match="bad shape"):
        exec(compile(text, "repro.py", "exec"), {"__file__": "repro.py"})
