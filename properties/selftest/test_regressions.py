"""Regressions: kept examples are checked first, on every kernel that takes them, and can fail."""

from __future__ import annotations

import json
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import flashcheck
from flashcheck import regressions
from flashcheck.cli import main
from flashcheck.events import Checked, Event, FailureFound
from flashcheck.examples import Example, load, of_tensors, save
from flashcheck.fills import Fill
from flashcheck.formats import FORMATS
from flashcheck.kernel import Target
from flashcheck.loading import describe
from flashcheck.masks import Mask
from flashcheck.problem import Problem
from flashcheck.regressions import why_not
from flashcheck.reporting import json_report
from flashcheck.strategies import Space
from flashcheck.verdict import Check, Verdict

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

RARE = 0.123456001281738281
"""A scale that no search draws."""

KERNEL = """
    def attention(query, key, value, *, scale=None):
        s = query.double() @ key.double().mT
        s = s * (query.shape[-1] ** -0.5 if scale is None else scale)
        out = s.softmax(-1) @ value.double()
        {fault}
        return out.to(query.dtype)
    """
ON_RARE = f"out = out * 1.1 if scale == {RARE} else out"
NORMAL = Fill(noise="normal", spread=1.0)
PROBLEM = Problem(
    len_q=3, len_k=5, dim=16, dim_v=16, q=NORMAL, k=NORMAL, v=NORMAL, scale=RARE, seed=3
)


def example(problem: Problem = PROBLEM, **changes: Any) -> Example:
    """Found on a kernel that is no more."""
    check = Check("agreement", Verdict.VIOLATION, 9.0, "out value", "it was wrong")
    fields: dict[str, Any] = {"problem": problem, "check": check, "property": "agreement"}
    return Example(
        **fields | {"target": "gone.py:attention", "name": "gone.py:attention"} | changes
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write("right.py", "pass")
    write("rare.py", ON_RARE)
    return tmp_path


def write(name: str, fault: str) -> None:
    Path(name).write_text(textwrap.dedent(KERNEL).format(fault=fault))


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, [*arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.output.split())


def gate(*arguments: str) -> tuple[int, str]:
    return run(
        "gate", *arguments, "--no-isolate", "--budget", "smoke", "--dtype", "float32", "--seed", "1"
    )


def test_rare_input() -> None:
    """A kernel that is wrong on nothing that a search draws fails once the example is kept."""
    kept = example()
    save(kept)
    code, text = gate("rare.py:attention")
    assert code == 0, text
    assert "regression first" not in text
    code, text = run("promote", kept.id)
    assert code == 0
    assert f"wrote properties/regressions/{kept.id}.json" in text
    assert "the gate checks it first" in text
    code, text = gate("rare.py:attention", "--report", "json=r.json", "--report", "md=r.md")
    assert code == 1
    assert "2 failed, 1 regression first" in text or "1 failed, 1 regression first" in text
    assert f"seen first on the regression {kept.id}" in text
    (found,) = json.loads(Path("r.json").read_text())["targets"][0]["failures"]
    assert found["recipe"]["scale"] == RARE
    assert load(f".flashcheck/examples/{found['example_id']}.json").problem.scale == RARE
    assert "`rare.py:attention` 1" in Path("r.md").read_text()
    # It says so for another kernel too, which passes.
    code, text = gate("right.py:attention", "--report", "json=r.json")
    assert code == 0, text
    assert "1 regression first" in text
    data = json.loads(Path("r.json").read_text())
    json_report.validate(data)
    assert data["targets"][0]["regressions"] == 1
    assert json_report.read(Path("r.json")).targets[0].regressions == 1


def test_own_property() -> None:
    """An example is checked by its own property and by agreement, before anything else."""
    kept = example(property="score_shift")
    save(kept, regressions.FOLDER)
    events: list[Event] = []
    flashcheck.gate(
        ["right.py:attention"], dtypes=["float32"], budget="30", seed=1, isolate=False,
        listeners=[events.append],
    )  # fmt: skip
    checked = [e for e in events if isinstance(e, Checked)]
    assert [e.check.property for e in checked[:2]] == ["agreement", "score_shift"]
    assert [e.regression for e in checked[:2]] == [kept.id] * 2
    assert not any(e.regression for e in checked[2:])
    assert len(checked) == 2 + 30


def test_many_leave_the_search_its_budget() -> None:
    """However many are kept, as many problems are generated as without them."""
    for i in range(40):
        save(example(replace(PROBLEM, seed=i)), regressions.FOLDER)
    events: list[Event] = []
    flashcheck.gate(
        ["right.py:attention"], dtypes=["float32"], budget="30", seed=1, isolate=False,
        listeners=[events.append],
    )  # fmt: skip
    checked = [e for e in events if isinstance(e, Checked)]
    assert sum(bool(e.regression) for e in checked) == 40
    assert sum(not e.regression for e in checked) == 30


def captured() -> Example:
    """A call with one outlier that no recipe has, on which no kernel ever failed."""
    x = replace(PROBLEM, scale=None).inputs()
    v = np.array(x.v)
    v[0, 0, 2, 3] = 77.125
    problem, tensors = of_tensors(x.with_(v=v))
    return example(problem, captured=tensors, check=Check("agreement", Verdict.PASS))


def test_captured() -> None:
    """Captured tensors are kept with their bits, checked, cut down and saved when they fail."""
    kept = captured()
    save(kept)
    code, text = run("promote", kept.id)
    assert code == 0
    assert f"{kept.id}.safetensors" in text
    again = load(regressions.FOLDER / f"{kept.id}.json")
    assert again.inputs_sha256 == kept.inputs_sha256
    assert gate("right.py:attention")[0] == 0
    write("outlier.py", "out = out * 1.1 if (value == 77.125).any() else out")
    events: list[Event] = []
    result = flashcheck.gate(
        ["outlier.py:attention"], dtypes=["float32"], budget="smoke", seed=1, isolate=False,
        listeners=[events.append],
    )  # fmt: skip
    assert result.exit_code == 1
    (found,) = [e for e in events if isinstance(e, FailureFound)]
    assert f"seen first on the regression {kept.id}" in found.text
    assert "captured" in found.text
    saved = load(f".flashcheck/examples/{found.example_id}.json")
    assert saved.captured is not None
    assert 77.125 in saved.captured.v
    assert saved.captured.q.size < again.inputs.q.size
    code, text = run("replay", found.example_id)
    assert code == 1
    assert "FAILED" in text


def test_damaged() -> None:
    """A damaged file is refused by `promote`, and never skipped in silence by the gate."""
    path = save(example())
    path.write_text(path.read_text().replace("it was wrong", "it was right"))
    code, text = run("promote", str(path))
    assert code == 2
    assert "was changed after it was saved" in text
    assert not regressions.FOLDER.exists()
    regressions.FOLDER.mkdir(parents=True)
    shutil.copy(path, regressions.FOLDER)
    code, text = gate("right.py:attention")
    assert code == 2
    assert f"not tested: a regression: properties/regressions/{path.name} was changed" in text
    assert "COULD NOT RUN" in text
    write("wrong.py", "out = out * 1.1")
    assert gate("wrong.py:attention")[0] == 1


def test_unknown_property() -> None:
    save(example(property="of_the_future"), regressions.FOLDER)
    code, text = gate("right.py:attention")
    assert code == 2
    assert "is about of_the_future, which this flashcheck has not" in text


def test_folders(folder: Path) -> None:
    """The folder is configured, or given; one that the gate does not look into is said."""
    kept = example()
    save(kept)
    code, text = run("promote", kept.id, "--to", "elsewhere")
    assert code == 0
    assert "set regressions = 'elsewhere' in [tool.flashcheck]" in text
    assert gate("rare.py:attention")[0] == 0
    (folder / "flashcheck.toml").write_text('regressions = "elsewhere"\n')
    assert gate("rare.py:attention")[0] == 1
    assert "the gate checks it first" in run("promote", kept.id, "--to", "elsewhere")[1]
    # The same example in two folders is one.
    shipped = regressions.read(Path("none")).examples
    save(kept, "two")
    assert len(regressions.read(Path("two")).examples) == len(shipped) + 1
    assert regressions.read(folder / "none").damaged == ()


def test_shipped() -> None:
    """Those that come with flashcheck can all be read, and torch's own attention holds them."""
    found = regressions.read(Path("none"))
    assert found.damaged == ()
    assert found.examples
    code, text = gate("torch_sdpa")
    assert code == 0
    taken = sum(e.dtype == "float32" for e in found.examples)
    assert f"{taken} regressions first" in text


TARGET = describe(lambda query, key, value: query)[1]
SPACE = Space(dtype="float32", head_dims=(16, 64))


@pytest.mark.parametrize(
    ("problem", "space", "why"),
    [
        (PROBLEM, SPACE, ""),
        (PROBLEM, replace(SPACE, options=frozenset({"is_causal"})), "does not take scale"),
        (replace(PROBLEM, is_causal=True, heads=2, scale=None),
         replace(SPACE, options=frozenset()), "enable_gqa and is_causal"),
        (replace(PROBLEM, mask=Mask()), replace(SPACE, mask_forms=frozenset()), "such a mask"),
        (replace(PROBLEM, mask=Mask(dtype="query")),
         replace(SPACE, mask_forms=frozenset({("bool", "float32", 4)})), ""),
        (replace(PROBLEM, dim=32, dim_v=32), SPACE, "head size"),
        (replace(PROBLEM, dim_v=64), replace(SPACE, dim_v_differs=False), "head size"),
        (replace(PROBLEM, scale=None), replace(SPACE, scale_none=False), "scale=None"),
        (replace(PROBLEM, scale=0.0), replace(SPACE, positive_scale=True), "positive scales"),
        (replace(PROBLEM, len_k=0), replace(SPACE, empty_keys=False), "Lk = 0"),
        (replace(PROBLEM, is_causal=True), replace(SPACE, causal_square=True), "Lq = Lk"),
        (replace(PROBLEM, len_k=1000), SPACE, ""),
    ],
)  # fmt: skip
def test_taken(problem: Problem, space: Space, why: str) -> None:
    """What probing found decides which examples a kernel is asked."""
    said = why_not(example(problem), space, TARGET)
    assert why in said if why else said == ""


@pytest.mark.parametrize(
    "problem",
    [replace(PROBLEM, len_k=98), replace(PROBLEM, batch=3), replace(PROBLEM, len_q=95, len_k=95)],
)
def test_interpreted(problem: Problem) -> None:
    """Triton's interpreter gets small problems alone; the report says what it did not get."""
    slow: Target = replace(TARGET, interpreted=True)
    space = replace(SPACE, max_length=97, max_heads=2, work=20_000)
    assert why_not(example(), space, slow) == ""
    assert "too large for Triton's interpreter" in why_not(example(problem), space, slow)
    kept = regressions.Regressions((example(problem), example()), ("x.json was changed: get it",))
    assert regressions.untested(kept, {"float32": space}, slow) == (
        "1 regression: too large for Triton's interpreter; gate it on a GPU",
        "a regression: x.json was changed: get it",
    )
    assert FORMATS["float32"].round(RARE) == RARE
