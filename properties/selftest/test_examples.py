"""Examples survive the journey to another machine, or say clearly that they did not."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flashcheck import environment
from flashcheck.bits import bits_sha256, from_bits, to_bits
from flashcheck.examples import (
    FORMAT_VERSION,
    SIZE_LIMIT,
    Example,
    ExampleError,
    find,
    load,
    of_tensors,
    save,
)
from flashcheck.fills import Fill
from flashcheck.formats import FORMATS
from flashcheck.inputs import Inputs
from flashcheck.masks import Mask
from flashcheck.problem import Problem, dumps
from flashcheck.replay import Replayed, differences, exit_code, render, replay
from flashcheck.strategies import Space, problems
from flashcheck.verdict import Check, Verdict, Worst

DTYPES = tuple(d for d in FORMATS if d != "tf32")
PROBLEM = Problem(
    len_k=33, dim=16, dim_v=16, scale=0.25, seed=7, v=Fill("spike", level=1.0, at=-1)
)  # fmt: skip
WORST = Worst("out", (0, 0, 0, 0), 0.0, 1 / 33, 1 / 33, 1.5e-8, 1e-20)


CHECK = Check(
    "agreement", Verdict.VIOLATION, 2000.0, "out value", "out[0, 0, 0, 0] is wrong", WORST,
    {"elements": 16, "wrong": 16},
)  # fmt: skip


def example(**changes: Any) -> Example:
    of_check = {"verdict", "ratio", "symptom", "message", "worst"}
    found = {name: changes.pop(name) for name in of_check & set(changes)}
    check = dataclasses.replace(CHECK, property=changes.get("property", "agreement"), **found)
    given: dict[str, Any] = {
        "problem": PROBLEM, "property": "agreement", "target": "kernel.py:attention",
        "name": "kernel.py:attention", "source": "0" * 64, "check": check, "seed": 2871943,
        "contrast": ("passes with 32 keys", "× → ⟂"),
        "text": "── kernel ──\n  got 0.0\n\n  expected 0.03\n", "found": PROBLEM,
        "environment": {"versions": {"torch": "2.13"}},
    }  # fmt: skip
    return Example(**given | changes)


def captured(dtype: str, mask: str | None = None) -> Inputs:
    """Tensors full of what is easily lost: signs of zero, subnormals, infinities, payloads."""
    fmt = FORMATS[dtype]
    tiny, nan = fmt.min_subnormal, np.array([np.nan, -np.nan])
    edge = [0.0, -0.0, tiny, -tiny, 3 * tiny, fmt.min_normal, fmt.max_finite, -1.0, *nan]
    if dtype != "float8_e4m3fn":
        edge += [math.inf, -math.inf]
        payload = np.uint64(0x7FF << 52) | np.uint64(1) << np.uint64(53 - fmt.precision)
        signalling = np.array([payload, payload | np.uint64(1 << 63)]).view(np.float64)
        edge += list(signalling)
    q = np.resize(np.array(edge), (2, 2, 3, 5))
    k, v = np.resize(np.array(edge[::-1]), (2, 1, 4, 5)), np.resize(np.array(edge), (2, 1, 4, 6))
    passed = frozenset({"is_causal"})
    x = Inputs(dtype, q, k, v, scale=-0.0, enable_gqa=True, layout="padded", passed=passed)
    if mask == "bool":
        return x.with_(mask=np.resize([True, False, False], (3, 4)))
    if mask is not None:
        added = np.resize([-np.inf, 0.5, -0.0], (1, 2, 3, 4))
        return x.with_(mask=added, mask_dtype=mask)
    return x


def same_tensors(a: Inputs, b: Inputs) -> bool:
    for name in ("q", "k", "v", "mask"):
        first, second = getattr(a, name), getattr(b, name)
        if (first is None) != (second is None):
            return False
        if first is not None and (
            (first.shape, first.dtype) != (second.shape, second.dtype)
            or np.ascontiguousarray(first).tobytes() != second.tobytes()
        ):
            return False
    rest = [{f.name: repr(getattr(x, f.name)) for f in dataclasses.fields(x)} for x in (a, b)]
    return all(rest[0][n] == rest[1][n] for n in rest[0] if n not in ("q", "k", "v", "mask"))


# -- files --------------------------------------------------------------------------------


def test_a_recipe_round_trips_and_is_small(tmp_path: Path) -> None:
    saved = example(environment=environment.collect("cpu"), mask_forms=Space().mask_forms)
    path = save(saved, tmp_path / "deep" / "er")
    assert path.name == f"{saved.id}.json"
    assert len(path.read_bytes()) <= SIZE_LIMIT
    assert load(path) == saved
    assert sorted(os.listdir(path.parent)) == [path.name]


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_recipe_round_trips(tmp_path: Path, dtype: str, data: st.DataObject) -> None:
    problem = data.draw(problems(Space(dtype=dtype)))
    loaded = load(save(example(problem=problem, found=None), tmp_path))
    assert dumps(loaded.problem) == dumps(problem)
    assert same_tensors(loaded.inputs, problem.inputs())


@pytest.mark.parametrize("mask", [None, "bool", "float32", "query"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_captured_tensors_round_trip_bit_for_bit(
    tmp_path: Path, dtype: str, mask: str | None
) -> None:
    if mask == "query" and dtype == "float8_e4m3fn":
        pytest.skip("it has no infinity")
    x = captured(dtype, dtype if mask == "query" else mask)
    problem, tensors = of_tensors(x, seed=3)
    saved = example(problem=problem, captured=tensors, found=None)
    path = save(saved, tmp_path)
    assert path.with_suffix(".safetensors").is_file()
    loaded = load(path)
    assert same_tensors(loaded.inputs, x)
    assert loaded.id == saved.id
    assert "captured" in loaded.sentence
    assert bits_sha256(loaded.inputs) == bits_sha256(x)


def test_no_keys_round_trip(tmp_path: Path) -> None:
    x = Inputs("float32", np.ones((1, 1, 2, 4)), np.ones((1, 1, 0, 4)), np.ones((1, 1, 0, 4)))
    problem, tensors = of_tensors(x)
    assert same_tensors(load(save(example(problem=problem, captured=tensors), tmp_path)).inputs, x)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d not in ("float64", "float32")])
def test_all_bits_of_a_small_dtype_round_trip(dtype: str) -> None:
    size = 8 if dtype.startswith("float8") else 16
    bits = np.arange(1 << size, dtype=f"u{size // 8}")
    back = to_bits(from_bits(bits, dtype), dtype)
    assert np.array_equal(back, bits)


def test_values_that_the_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    problem, tensors = of_tensors(captured("float16"))
    tensors = tensors.with_(q=np.full_like(tensors.q, 0.1))
    with pytest.raises(ExampleError, match="q has values that float16 cannot hold"):
        save(example(problem=problem, captured=tensors), tmp_path)


def test_numbers_that_json_lacks_round_trip(tmp_path: Path) -> None:
    worst = dataclasses.replace(WORST, got=math.inf, error=math.inf, expected=-math.inf)
    saved = example(ratio=math.inf, worst=worst, found=None)
    path = save(saved, tmp_path)
    assert "Infinity" not in path.read_text()
    assert load(path) == saved
    nan = load(save(example(worst=dataclasses.replace(WORST, got=math.nan)), tmp_path)).check.worst
    assert nan is not None
    assert math.isnan(nan.got)


def test_a_long_story_is_cut_to_size(tmp_path: Path) -> None:
    saved = example(text="a line of text\n" * 2000, contrast=("passes " * 200,) * 30)
    path = save(saved, tmp_path)
    loaded = load(path)
    assert loaded.id == saved.id
    assert loaded.problem == saved.problem
    saved = example(text="a line of text\n" * 2000, environment=environment.collect("cpu"))
    path = save(saved, tmp_path)
    assert len(path.read_bytes()) <= SIZE_LIMIT
    assert "(cut" in load(path).text


def test_text_that_utf8_lacks_is_saved(tmp_path: Path) -> None:
    assert load(save(example(message="bad \udc80 byte"), tmp_path)).check.message == "bad ? byte"


def test_the_id_depends_on_the_check_alone(tmp_path: Path) -> None:
    one = example()
    assert one.id == "fc-kf5svnma", "ids are in reports and issue trackers: they must not change"
    same = {"seed": 1, "environment": {}, "ratio": 3.0, "text": "", "found": None, "device": "cuda"}
    assert example(**same).id == one.id
    for change in (
        {"problem": dataclasses.replace(PROBLEM, seed=8)},
        {"property": "convexity"},
        {"target": "torch_sdpa"},
        {"config": "small"},
    ):
        assert example(**change).id != one.id
    problem, tensors = of_tensors(captured("float32"))
    first = example(problem=problem, captured=tensors)
    q = tensors.q.copy()
    q[0, 0, 0, 0] = -q[0, 0, 0, 0]
    assert example(problem=problem, captured=tensors.with_(q=q)).id != first.id
    save(one, tmp_path)
    save(example(**same), tmp_path)
    assert [p.stem for p in tmp_path.iterdir()] == [one.id]


def test_loading_imports_no_kernel_and_no_torch(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text("raise SystemExit('it was imported')")
    path = save(example(target=f"{tmp_path}/kernel.py:f"), tmp_path)
    code = (
        f"import sys; from flashcheck.examples import load; load({str(path)!r})\n"
        "bad = [m for m in sys.modules if m == 'torch' or m.startswith('flashcheck.kernels')]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True)


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(example(), tmp_path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        save(example(ratio=5.0), tmp_path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_render_shows_the_explanation_or_what_there_is(tmp_path: Path) -> None:
    saved = example(environment=environment.collect("cpu"))
    text = load(save(saved, tmp_path)).render()
    assert text.startswith(saved.text.rstrip())
    assert "recorded with" in text
    assert "torch" in text
    bare = example(text="").render()
    for said in (saved.id, "VIOLATION", "33 keys", "passes with 32 keys", "flashcheck replay"):
        assert said in bare


# -- damaged files ------------------------------------------------------------------------


def refused(path: Path, *words: str) -> None:
    with pytest.raises(ExampleError) as caught:
        load(path)
    text = str(caught.value)
    assert "\n" not in text
    assert path.stem in text
    for word in words:
        assert word in text


def test_truncation_is_noticed(tmp_path: Path) -> None:
    path = save(example(), tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    assert load(path) == example(), "the last newline does not count"
    for size in (0, 1, 2, 17, len(data) // 3, len(data) // 2, len(data) - 3, len(data) - 2):
        path.write_bytes(data[:size])
        refused(path, "empty" if size == 0 else "cut short", "get the file again")


def test_an_edited_byte_is_noticed(tmp_path: Path) -> None:
    saved = example()
    path = save(saved, tmp_path)
    data = path.read_bytes()
    unnoticed = 0
    for at in range(len(data)):
        for other in (data[at] ^ 1, data[at] ^ 0x20, 0xFF):
            path.write_bytes(data[:at] + bytes([other]) + data[at + 1 :])
            with contextlib.suppress(ExampleError):
                # Only what JSON does not see: one kind of blank for another, e for E.
                assert load(path) == saved
                unnoticed += 1
    assert unnoticed < 30


def test_an_edited_value_is_noticed(tmp_path: Path) -> None:
    path = save(example(), tmp_path)
    text = path.read_text()
    path.write_text(text.replace('"len_k": 33', '"len_k": 32'))
    refused(path, "was changed after it was saved", "digest")
    path.write_text(text.replace("\n", "\r\n"))
    assert load(path) == example(), "git may change the ends of lines"


@pytest.mark.parametrize(
    "text", ["[]", "{}", "3", '"x"', "null", '{"format_version": 1}', '{"kind": "other"}']
)
def test_foreign_json_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "fc-aaaaaaaa.json"
    path.write_text(text)
    refused(path, "is not a flashcheck example")


@pytest.mark.parametrize("data", [b"\x00\x01", b"[" * 100_000, b"NaN", b"\xff\xfe{}", b"1" * 9999])
def test_no_json_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "fc-aaaaaaaa.json"
    path.write_bytes(data)
    refused(path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fc-aaaaaaaa.json"
    path.write_text(json.dumps({"kind": "flashcheck-example", "format_version": 2, "new": []}))
    refused(path, "format_version 2", f"reads {FORMAT_VERSION}", "upgrade flashcheck")
    path.write_text(json.dumps({"kind": "flashcheck-example", "format_version": None}))
    refused(path, "format_version None")


def test_missing_files_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "fc-aaaaaaaa.json", "does not exist")
    (tmp_path / "fc-b.json").mkdir()
    refused(tmp_path / "fc-b.json", "cannot be read")
    problem, tensors = of_tensors(captured("bfloat16"))
    path = save(example(problem=problem, captured=tensors), tmp_path)
    partner = path.with_suffix(".safetensors")
    data = partner.read_bytes()
    for damaged in (data[:-1], data[:40], b"", data[:-1] + bytes([data[-1] ^ 1])):
        partner.write_bytes(damaged)
        refused(path, "safetensors", "copy it again")
    partner.rename(tmp_path / "gone")
    refused(path, "safetensors beside it", "copy both files")


def test_a_recipe_that_rebuilds_to_other_bits_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(example(), tmp_path)
    other = PROBLEM.inputs()
    monkeypatch.setattr(Problem, "inputs", lambda self: other.with_(q=-other.q))
    refused(path, "does not rebuild to the input bits", "replay it with flashcheck")


# -- finding ------------------------------------------------------------------------------


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(None, tmp_path / "nothing") == []
    paths = sorted(
        save(example(problem=dataclasses.replace(PROBLEM, seed=s)), tmp_path / "ex")
        for s in range(40)
    )
    (tmp_path / "ex" / "run.json").write_text("{}")
    folder, one = tmp_path / "ex", paths[3]
    assert find(None, folder) == paths
    assert find(str(tmp_path), folder) == paths
    for name in (one.stem, one.stem[3:], one.stem[:-1], one.stem.upper(), one.name, str(one)):
        assert find(name, folder) == [one]
    assert find(str(one.with_suffix(".safetensors")), folder) == [one]
    initials = [p.stem[3] for p in paths]
    common = next(c for c in initials if initials.count(c) > 1)
    with pytest.raises(ExampleError, match="is the beginning of"):
        find("fc-" + common, folder)
    with pytest.raises(ExampleError, match="which has fc-"):
        find("fc-aaaaaaaa", folder)
    for wrong in ("nothing/here.json", "no such", "fc-1"):
        with pytest.raises(ExampleError):
            find(wrong, folder)
    monkeypatch.chdir(tmp_path)
    assert find() == []


# -- replay -------------------------------------------------------------------------------

HEAD = """
import os, time, torch
from flashcheck.kernel import Kernel
def right(q, k, v, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)
"""
BODIES = {
    "right": "    return right(q, k, v, scale)",
    "tail": "    n = k.shape[2] // 32 * 32\n    return right(q, k[:, :, :n], v[:, :, :n], scale)",
    "nan": "    return right(q, k, v, scale) * float('nan')",
    "crash": "    if k.shape[2] == 33: raise ValueError(3)\n    return right(q, k, v, scale)",
    "refuse": "    raise NotImplementedError('not on Mondays')",
    "refuses_all": "    raise RuntimeError('only head size 64')",
    "dies": "    if k.shape[2] == 33: os._exit(3)\n    return right(q, k, v, scale)",
    "hangs": "    if k.shape[2] == 33: time.sleep(100)\n    return right(q, k, v, scale)",
}


def write(folder: Path, what: str, name: str = "kernel.py", more: str = "") -> str:
    body = f"{HEAD}\ndef attention(q, k, v, scale=None):\n{BODIES[what]}\n{more}\n"
    (folder / name).write_text(body)
    return f"{folder / name}:attention"


def outcome(path: Path, **how: Any) -> Replayed:
    (one,) = replay([path], device="cpu", **{"timeout": 10.0, **how})
    return one


def test_fixed_failed_changed(tmp_path: Path) -> None:
    spec = write(tmp_path, "tail")
    path = save(example(target=spec), tmp_path)
    failed = outcome(path)
    assert (failed.status, failed.message) == ("FAILED", "")
    assert failed.check is not None
    assert failed.check.ratio > 1
    assert exit_code([failed]) == 1
    write(tmp_path, "right")
    fixed = outcome(path)
    assert fixed.status == "FIXED"
    assert fixed.check is not None
    assert fixed.check.ratio <= 1
    assert exit_code([fixed]) == 0
    for what, said in (("nan", "now VIOLATION (out n"), ("crash", "now CRASH (raises Value"),
                       ("dies", "now CRASH (process died)")):  # fmt: skip
        write(tmp_path, what)
        changed = outcome(path)
        assert changed.status == "CHANGED"
        assert "was VIOLATION (out value), " + said in changed.message
        assert exit_code([changed, fixed]) == 1
    assert find(None, tmp_path) == [path], "replaying keeps the example"


def test_in_process_and_unchanged_source(tmp_path: Path) -> None:
    spec = write(tmp_path, "right", name="inside.py")
    first = outcome(save(example(target=spec), tmp_path), isolate=False)
    assert first.status == "FIXED"
    from flashcheck.loading import load as load_kernel

    source = load_kernel(spec)[1].source
    second = outcome(save(example(target=spec, source=source), tmp_path), isolate=False)
    assert "unchanged" in second.message


def test_a_hang_does_not_take_the_minutes_of_a_warm_up(tmp_path: Path) -> None:
    spec = write(tmp_path, "hangs")
    path = save(example(target=spec, verdict=Verdict.TIMEOUT, symptom="timeout"), tmp_path)
    assert outcome(path, timeout=1.0).status == "FAILED"


@pytest.mark.parametrize("what", ["refuse", "refuses_all"])
def test_a_refusal_is_an_error(tmp_path: Path, what: str) -> None:
    refusal = outcome(save(example(target=write(tmp_path, what)), tmp_path))
    assert refusal.status == "ERROR"
    assert "refuses" in refusal.message
    assert exit_code([refusal]) == 2


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    spec = write(tmp_path, "right", more="plain = lambda q, k, v: right(q, k, v)")
    plain = spec.replace(":attention", ":plain")
    for changes, how, said in (
        ({"target": "no_such_kernel"}, {}, "pass --kernel TARGET"),
        ({"target": "no_such_kernel"}, {"kernel": "nor_this"}, "nor_this"),
        ({"target": spec, "property": "beauty"}, {}, "no property 'beauty'"),
        ({"target": spec}, {"kernel": plain}, "does not name scale, which this example uses"),
        (
            {"target": spec, "problem": dataclasses.replace(PROBLEM, mask=Mask())},
            {"kernel": plain},
            "does not name attn_mask and scale",
        ),
        ({"target": spec, "property": "causal_prefix"}, {}, "does not apply"),
    ):
        error = outcome(save(example(**changes), tmp_path), isolate=False, **how)
        assert (error.status, error.check) == ("ERROR", None)
        assert said in error.message
    broken = tmp_path / "fc-broken.json"
    broken.write_text("{")
    error = outcome(broken)
    assert (error.status, error.example) == ("ERROR", None)
    assert "cut short" in error.message


def test_another_kernel(tmp_path: Path) -> None:
    path = save(example(target="no_such_kernel"), tmp_path)
    other = outcome(path, kernel=write(tmp_path, "tail"), isolate=False)
    assert other.status == "FAILED"
    assert other.target == "kernel.py:attention"


def test_a_config_that_is_gone(tmp_path: Path) -> None:
    more = "two = Kernel(attention, configs={'a': {}, 'b': {}})"
    spec = write(tmp_path, "tail", more=more).replace(":attention", ":two")
    for config, said in (("b", ""), ("c", "config 'c' is gone, run with 'a'"),
                         (None, "recorded without a config, run with 'a'")):  # fmt: skip
        path = save(example(target=spec, config=config), tmp_path)
        assert outcome(path, isolate=False).message == said
    path = save(example(target=spec, config="c"), tmp_path)
    found = outcome(path, kernel=spec.replace(":two", ":attention"), isolate=False)
    assert found.message == "config 'c' is gone, run without one"


def test_captured_tensors_are_replayed(tmp_path: Path) -> None:
    problem, tensors = of_tensors(PROBLEM.inputs(), seed=PROBLEM.seed)
    spec = write(tmp_path, "tail")
    path = save(example(problem=problem, captured=tensors, found=None, target=spec), tmp_path)
    failed = outcome(path)
    recipe = outcome(save(example(target=spec), tmp_path))
    assert failed.status == "FAILED"
    assert failed.check is not None
    assert recipe.check is not None
    assert failed.check.ratio == recipe.check.ratio


def test_a_race_has_to_pass_many_times(tmp_path: Path) -> None:
    more = "calls = []\ndef racy(q, k, v, scale=None):\n    calls.append(1)\n"
    more += "    return right(q, k, v, scale) + (len(calls) == 16) * 1e-3\n"
    spec = write(tmp_path, "right", more=more).replace(":attention", ":racy")
    changes = {"verdict": Verdict.NONDETERMINISTIC, "symptom": "nondeterministic"}
    racy = save(example(target=spec, property="repeat", **changes), tmp_path)
    assert outcome(racy).status == "FAILED"
    fixed = outcome(racy, kernel=spec.replace(":racy", ":attention"))
    assert (fixed.status, fixed.message) == ("FIXED", "held 20 times")


def test_order_is_kept_over_kernels(tmp_path: Path) -> None:
    specs = [write(tmp_path, "right", "a.py"), write(tmp_path, "tail", "b.py")]
    paths = [
        save(example(target=s, problem=dataclasses.replace(PROBLEM, seed=n)), tmp_path)
        for n in range(2)
        for s in specs
    ]
    done = replay(paths, device="cpu", isolate=False)
    assert [r.path for r in done] == paths
    assert [r.status for r in done] == ["FIXED", "FAILED"] * 2


# -- for people ---------------------------------------------------------------------------


def test_render_is_aligned_and_narrow(tmp_path: Path) -> None:
    long = "no kernel is called 'old_kernel' (" + "registered: numpy_online, " * 9 + ")"
    then = {"gpu": {"name": "H200"}, "versions": {"torch": "2.14"}}
    now = {"cpu": {"model": "EPYC"}, "versions": {"torch": "2.13"}}
    named = [example(name=n, environment=then) for n in ("triton_flash", "m", "x/" * 40, "old")]
    check = Check("agreement", Verdict.PASS, 0.44)
    rows = [
        Replayed("fc-7k2m9qab", tmp_path / "a", "FIXED", "", "triton_flash", named[0], check, now),
        Replayed("fc-p03xvaab", tmp_path / "b", "FAILED", "", "m", named[1], check, now),
        Replayed("fc-1mm8deab", tmp_path / "c", "CHANGED", "was A, now B", "x/" * 40, named[2],
                 check, now),
        Replayed("fc-zz41haab", tmp_path / "d", "ERROR", long, "old", named[3]),
        Replayed("fc-zz41haac", tmp_path / "e", "ERROR", "word" * 60),
    ]  # fmt: skip
    text = render(rows)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == f"Replaying 5 examples from {tmp_path}"
    assert lines[2].startswith("  + FIXED    fc-7k2m9qab  triton_flash float32 ")
    assert lines[2].endswith("ratio 2.0e3 → 0.44")
    assert lines[2].index("ratio") == lines[3].index("ratio")
    assert lines[3].startswith("  x FAILED ")
    said = "recorded on H200 / torch 2.14, replayed on CPU EPYC / torch 2.13  (bits may differ)"
    assert text.count(said) == 1
    assert lines[-1].startswith("1 fixed, 1 failed, 1 changed, 2 error")
    assert lines[-1].endswith("exit 1")
    assert render([]).startswith("Nothing to replay")
    assert exit_code([]) == 0


def test_environments_differ_only_in_what_changes_bits() -> None:
    env = environment.collect("cpu")
    assert differences(env, env) == []
    threads = {**env, "variables": {"OMP_NUM_THREADS": "99"}, "git": None}
    assert not [d for d in differences(env, threads) if "THREADS" in d or "git" in d]
    tf32 = {**env, "numeric": {**env["numeric"], "cuda_allow_tf32": "yes"}}
    assert differences(env, tf32) == ["cuda_allow_tf32 False, now yes"]
