"""Failures of packed batches and paged caches are explained, and no explanation loses one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

import flashcheck
from flashcheck import CheckFailed, Problem, causes, checking, gating
from flashcheck.cli import main
from flashcheck.examples import load
from flashcheck.explanation import Explanation, explain
from flashcheck.explanation.further import problems
from flashcheck.fills import Fill
from flashcheck.kernel import OPTIONS
from flashcheck.law import Subject, law_named
from flashcheck.power.trial import spec
from flashcheck.power.witness import Witness, chosen
from flashcheck.problem import ProblemError
from flashcheck.sequences import lengths, plain, sequence_of, with_length, with_lengths
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

NORMAL = Fill(noise="normal", spread=1.0)
NOISE: dict[str, Any] = {"q": NORMAL, "k": NORMAL, "v": NORMAL}
PACKED = Problem(
    len_q=6, len_k=5, seqlens_q=(4, 0, 2), seqlens_k=(2, 3, 0), dim=8, dim_v=8, **NOISE
)
PAGED = Problem(batch=2, len_q=3, len_k=8, seqlens_k=(5, 0), page=4, spare=1, **NOISE)

UNWRITTEN = "sequence_without_keys_not_written"
"""Its witness shows what memory happens to hold, which may be right."""

WITNESSES = [
    w for w in chosen(["fp32_stats"], ["float32"]) if w.problem.seqlens_k and w.fault != UNWRITTEN
]

DEFECT = re.compile(
    r"flashcheck could not ([a-z ]+), by a defect of its own \(ValueError: what is it\?, "
    r"test_sequence_failures\.py:\d+\): the failure stands; please report this line"
)


def _defect(text: str) -> str:
    """What flashcheck says that it could not do."""
    said = DEFECT.search(" ".join(text.split()))
    assert said is not None, text
    return said[1]


# -- other lengths --------------------------------------------------------------------------


def test_lengths_of_a_problem() -> None:
    assert lengths(Problem(batch=2, len_q=3, len_k=4)) == [(3, 4)]
    assert lengths(PACKED) == [(4, 2), (0, 3), (2, 0)]
    assert lengths(PAGED) == [(3, 5), (3, 0)]
    for p in (PACKED, PAGED, Problem(len_k=4)):
        assert with_lengths(p, lengths(p)) == p


def test_another_length_keeps_the_form() -> None:
    other = with_length(PACKED, 2, keys=7)
    assert other == replace(PACKED, len_k=12, seqlens_k=(2, 3, 7))
    assert lengths(with_length(PACKED, 0, queries=1)) == [(1, 2), (0, 3), (2, 0)]
    # Within its pages, and then with a further one.
    assert with_length(PAGED, 1, keys=8) == replace(PAGED, seqlens_k=(5, 8))
    assert with_length(PAGED, 1, keys=9) == replace(PAGED, seqlens_k=(5, 9), len_k=12)
    # Every sequence on a cache has as many queries.
    assert lengths(with_length(PAGED, 1, queries=1)) == [(1, 5), (1, 0)]
    assert with_length(Problem(len_q=2), keys=5, queries=1) == Problem(len_k=5)
    assert plain(PAGED, 0) == replace(PAGED, batch=1, len_k=5, seqlens_k=(), page=0, spare=0)
    with pytest.raises(ProblemError, match="len_q is 0"):
        with_lengths(PACKED, [(0, 3)])


def test_the_sequence_of_a_row() -> None:
    assert [sequence_of(PACKED, 0, i) for i in range(7)] == [0, 0, 0, 0, 2, 2, 0]
    assert [sequence_of(PAGED, b, 1) for b in range(3)] == [0, 1, 0]
    assert sequence_of(Problem(batch=3, len_q=9), 2, 8) == 0


# -- explanations ---------------------------------------------------------------------------


def _subject(runner: InProcess, dtype: str = "float32") -> Subject:
    target = runner.start()
    return Subject(runner, target, Space(dtype=dtype, options=frozenset(OPTIONS)))


def _explained(kernel: str, problem: Problem, name: str = "agreement") -> Explanation:
    law = law_named(name)
    assert law is not None
    with InProcess(kernel) as runner:
        subject = _subject(runner, problem.dtype)
        config = subject.case(problem).config
        check = law.check(subject.case(problem, config))
        assert check.failed
        return explain(
            subject, law, problem, config, check, example_id="fc-aaaaaaaa", command="gate"
        )


@pytest.mark.slow
@pytest.mark.parametrize("witness", WITNESSES, ids=[w.fault for w in WITNESSES])
def test_every_fault_of_sequences_is_explained(witness: Witness) -> None:
    law = law_named(witness.property)
    assert law is not None
    with InProcess(spec(witness.kernel, witness.fault)) as runner:
        subject = _subject(runner)
        check = law.check(subject.case(witness.problem, witness.config))
        assert check.failed
        found = explain(
            subject, law, witness.problem, witness.config, check,
            example_id="fc-aaaaaaaa", command="gate",
        )  # fmt: skip
    assert found.sentence.endswith(".")
    assert "Not explained" not in found.text
    assert found.contrast or "again" in found.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "problem", "sentence", "contrast"),
    [
        ("fp32_stats+last_page_read_whole",
         Problem(len_k=16, seqlens_k=(15,), page=16, v=Fill("spike", level=1.0, at=-1)),
         r"Query 0 also takes in key 15, past the 15 keys of its sequence\.",
         r"passes with 16 keys; fails with .*15"),
        ("fp32_stats+sequence_ends_one_key_late",
         replace(PACKED, seqlens_k=(1, 2, 2)),
         r"also takes in key 1, although its sequence has 1 key, key 0\.",
         r"passes .*with sequence 0 alone or with sequence 0 as a plain call"),
        ("fp32_stats+causal_bottom_right", replace(PACKED, is_causal=True),
         r"The causal mask is aligned bottom-right instead of top-left\.", "without is_causal"),
        ("fp32_stats+causal_bottom_right", replace(PAGED, is_causal=True),
         r"The causal mask is aligned bottom-right instead of top-left\.", "without is_causal"),
        ("fp32_stats+next_key_visible", replace(PAGED, is_causal=True),
         r"The causal mask lets query i see key i \+ 1\.", "without is_causal"),
        ("fp32_stats+lse_in_base_two", PACKED, r"lse is 1\.4427 times", ""),
    ],
)  # fmt: skip
def test_what_is_said_of_sequences(
    kernel: str, problem: Problem, sentence: str, contrast: str
) -> None:
    found = _explained(kernel, problem)
    assert re.search(sentence, found.sentence), found.text
    assert re.search(contrast, "\n".join(found.contrast)), found.text
    assert "Not explained" not in found.text
    if "bottom_right" in kernel:
        assert 'causal_alignment="bottom_right"' in "".join(found.hints)


@pytest.mark.parametrize("problem", [PACKED, PAGED, replace(PACKED, is_causal=True)])
def test_further_problems_have_sequences_too(problem: Problem) -> None:
    with InProcess("fp32_stats") as runner:
        case = _subject(runner).case(problem)
        found = list(problems(case, case.inputs))
    # And one without them, which a fault of theirs leaves right.
    (without,) = [p for p in found[:6] if not p.seqlens_k]
    assert (without.page, without.packed) == (0, False)
    alike = [p for p in found[:6] if p.seqlens_k]
    assert all((p.page, p.packed) == (problem.page, problem.packed) for p in alike)


@pytest.mark.parametrize("problem", [PACKED, PAGED])
def test_check_fails_as_a_failed_check(problem: Problem) -> None:
    causal = replace(problem, is_causal=True)
    with pytest.raises(CheckFailed, match="aligned bottom-right instead of top-left"):
        flashcheck.check("fp32_stats+causal_bottom_right", causal).raise_if_failed()


# -- from the gate to a replay --------------------------------------------------------------


def _cli(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done.exit_code, done.output


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["last_page_read_whole", "sequence_ends_one_key_late"])
def test_a_failure_is_saved_told_and_replayed(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kernel = f"fp32_stats+{fault}"
    code, told = _cli(
        "gate", kernel, "--dtype", "float32", "--budget", "smoke", "--seed", "0",
        "--report", "json=report.json", "--report", "md=report.md",
    )  # fmt: skip
    assert code == 1, told
    (target,) = json.loads(Path("report.json").read_text())["targets"]
    saved = sorted(Path(".flashcheck/examples").glob("fc-*.json"))
    assert saved
    assert {found["example_id"] for found in target["failures"]} == {path.stem for path in saved}
    example = load(saved[0])
    assert example.problem.seqlens_k
    assert example.contrast
    assert "Contrast" in example.text
    assert "Not explained" not in example.text
    sentence = example.text.splitlines()[1]
    assert sentence
    assert sentence in told
    assert sentence in Path("report.md").read_text()

    code, told = _cli("replay", example.id)
    assert code == 1
    assert "FAILED" in told
    code, told = _cli("replay", example.id, "--kernel", "fp32_stats")
    assert code == 0
    assert "FIXED" in told
    code, told = _cli("show", example.id, "--script", "again.py")
    assert code == 0, told
    again = subprocess.run(
        [sys.executable, "again.py"], capture_output=True, text=True, timeout=120, check=False
    )
    assert again.returncode == 1
    assert "AssertionError" in again.stderr


# -- explanations that raise ----------------------------------------------------------------


def _raises(*_: object, **__: object) -> NoReturn:
    raise ValueError("what\n is it?")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A kernel that looks at no key."""
    file = tmp_path_factory.mktemp("broken") / "wrong.py"
    file.write_text("def attention(query, key, value):\n    return value.mean(2, True) + 0 * query")
    return f"{file}:attention"


@pytest.fixture
def one_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "MAX_CAUSES", 1)


def _gate(kernel: str, folder: Path) -> flashcheck.Result:
    return flashcheck.gate(
        [kernel], dtypes=["float32"], budget="60", seed=0, isolate=False, examples=folder,
        regressions=folder / "none",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("one_cause")
@pytest.mark.parametrize(
    ("part", "what"),
    [
        ("contrast", "compare it with its neighbours"),
        ("diagnosed", "say what is wrong with the result"),
        ("hints", "look for a declaration"),
        ("likely", "look for the cause"),
    ],
)
def test_a_part_that_raises_is_left_out(
    broken: str, part: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[explain.__module__], part, _raises)
    result = _gate(broken, tmp_path)
    assert result.exit_code == 1
    for failure in result.failures:
        text = " ".join(failure.text.split())
        assert "Not explained" in text
        assert _defect(text) == what
        assert "got" in text
        assert "Smallest input found" in text
        assert load(tmp_path / f"{failure.example_id}.json").text == failure.text


@pytest.mark.slow
@pytest.mark.usefixtures("one_cause")
def test_a_whole_explanation_that_raises(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gating, "explain", _raises)
    (failure, *_) = _gate(broken, tmp_path).failures
    assert _defect(failure.text) == "explain this failure"
    assert failure.example_id in failure.text
    assert "VIOLATION" in failure.text
    assert load(tmp_path / f"{failure.example_id}.json").text == failure.text


@pytest.mark.slow
@pytest.mark.usefixtures("one_cause")
def test_a_shrinking_that_raises(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(causes, "shrink", _raises)
    (failure, *_) = _gate(broken, tmp_path).failures
    assert failure.problem == failure.found
    assert _defect(failure.text) == "find a smaller problem"


@pytest.mark.slow
def test_an_interrupted_explanation_loses_nothing(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(gating, "explain", interrupted)
    result = _gate(broken, tmp_path)
    assert result.exit_code == 130
    (failure,) = result.failures
    assert load(tmp_path / f"{failure.example_id}.json").check.failed


def test_a_check_whose_explanation_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "hints", _raises)
    check = flashcheck.check("fp32_stats+causal_bottom_right", replace(PACKED, is_causal=True))
    with pytest.raises(CheckFailed) as failed:
        check.raise_if_failed()
    assert _defect(str(failed.value)) == "explain this failure"
    assert str(failed.value).startswith(check.message)
