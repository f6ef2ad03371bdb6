"""check: one kernel on one problem, in a user's own Hypothesis test."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

import flashcheck
from flashcheck import CheckFailed, Kernel, Problem, Verdict
from flashcheck.fills import Fill
from flashcheck.kernel import TargetError
from flashcheck.probe import INTERPRETED_LENGTH
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

FEW = settings(
    max_examples=100, deadline=None, database=None, derandomize=True,
    phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
)  # fmt: skip
LATE = Problem(len_k=130, q=Fill(level=1.0), k=Fill("spike", level=1.0, at=-1), v=Fill(level=1.0))
"""The maximum comes with the last key: what was summed before must be rescaled."""

EDGE = replace(LATE, len_k=17)


def right(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool = False
) -> torch.Tensor:
    s = query.double() @ key.double().mT * query.shape[-1] ** -0.5
    if is_causal:
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1) > 0, -torch.inf)
    out: torch.Tensor = s.softmax(-1) @ value.double()
    return out.to(query.dtype)


def wrong(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return 1.1 * right(query, key, value)


def test_holds() -> None:
    check = flashcheck.check(right, LATE)
    assert check.verdict is Verdict.PASS
    assert check.raise_if_failed() is check
    assert check.counts["elements"] == 1


@pytest.mark.parametrize("kernel", ["numpy_online+acc_not_rescaled", wrong])
def test_counterexample(kernel: Any) -> None:
    """What is wrong, the numbers, the problem in words, and code that makes it again."""
    check = flashcheck.check(kernel, LATE)
    assert check.verdict is Verdict.VIOLATION
    with pytest.raises(CheckFailed) as caught:
        check.raise_if_failed()
    assert caught.value.check is check
    text = str(caught.value)
    assert re.search(r"got \S+   expected 1   error \S+   bound \S+", text)
    assert re.search(r"at o\[b=0, h=0, query=0, d=0\]; 1 of [12] elements wrong", text)
    assert "1 query, 130 keys, head size 1, float32, no mask" in text
    assert "v = 1 everywhere" in text
    code = " ".join(text.split())
    recipe = re.search(r"Problem\.from_dict\((\{.*?\})\) flashcheck\.check\(", code)
    assert recipe is not None
    again = Problem.from_dict(ast.literal_eval(recipe[1]))
    assert again == LATE


def test_diagnosis() -> None:
    with pytest.raises(CheckFailed, match=r"(?s)weigh .* too much .* was not rescaled"):
        flashcheck.check("numpy_online+acc_not_rescaled", EDGE, config="block_16").raise_if_failed()


def test_explained_only_when_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that shrinks raises hundreds of times; to explain each would take minutes."""
    calls: list[int] = []

    def counted(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return wrong(query, key, value)

    with pytest.raises(CheckFailed) as caught:
        flashcheck.check(counted, LATE).raise_if_failed()
    assert len(calls) == 1
    text = str(caught.value)
    explained = len(calls)
    assert explained > 1
    assert str(caught.value) == text
    assert len(calls) == explained


def test_own_test_finds_the_fault() -> None:
    @FEW
    @given(flashcheck.problems(flashcheck.space(wrong)))
    def test(problem: Problem) -> None:
        flashcheck.check(wrong, problem).raise_if_failed()

    with pytest.raises(CheckFailed, match=r"1 query, 1 key, head size 16, float32") as caught:
        test()
    assert any("problem=Problem.from_dict({" in note for note in caught.value.__notes__)


def test_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred checks of one kernel load it once; a Kernel that has no hash too."""
    kernel = Kernel(right, dtypes=["float32"], configs={"a": {}, "b": {}})
    loaded: list[object] = []
    start = InProcess.start

    def counted(self: InProcess) -> Any:
        loaded.append(self)
        return start(self)

    space = flashcheck.space(kernel)
    monkeypatch.setattr(InProcess, "start", counted)

    @FEW
    @given(flashcheck.problems(space))
    def test(problem: Problem) -> None:
        flashcheck.check(kernel, problem).raise_if_failed()

    test()
    # `submit` looks whether the kernel is loaded, on the runner that there is.
    assert len(loaded) >= 100
    assert len(set(map(id, loaded))) == 1


def test_first_used_inside_a_test() -> None:
    """Nothing was imported before: Hypothesis forbids tests that are defined inside a test."""
    script = """
        import flashcheck
        from hypothesis import given, settings

        @settings(deadline=None, database=None, max_examples=5)
        @given(flashcheck.problems())
        def test(problem):
            flashcheck.check("numpy_naive", problem).raise_if_failed()

        test()
        """
    program = "\n".join(line.removeprefix("        ") for line in script.splitlines())
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_law_that_does_not_apply() -> None:
    """It is no pass: alone it raises, in a Hypothesis test another problem is drawn."""
    check = flashcheck.check(right, LATE, property="causal_prefix")
    assert check.verdict is Verdict.UNSUPPORTED
    assert not check.failed
    assert "says nothing about" in check.message
    with pytest.raises(CheckFailed, match="says nothing about"):
        check.raise_if_failed()
    checked: list[Problem] = []

    @FEW
    @given(flashcheck.problems(flashcheck.space(right)))
    def test(problem: Problem) -> None:
        flashcheck.check(right, problem, property="causal_prefix").raise_if_failed()
        checked.append(problem)

    test()
    assert checked
    assert all(problem.is_causal for problem in checked)

    @settings(FEW, max_examples=10)
    @given(flashcheck.problems(flashcheck.space(wrong)))
    def never(problem: Problem) -> None:
        flashcheck.check(wrong, problem, property="causal_prefix").raise_if_failed()

    with pytest.raises(Unsatisfiable):
        never()


def test_the_first_rows_under_a_causal_mask_that_is_aligned_at_the_ends() -> None:
    """Whatever the lengths; rows that see no key are NaN, as is declared."""

    def at_the_ends(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool = False
    ) -> torch.Tensor:
        s = query.double() @ key.double().mT * query.shape[-1] ** -0.5
        if is_causal:
            hidden = torch.ones(s.shape[-2:]).triu(1 + s.shape[-1] - s.shape[-2]) > 0
            s = s.masked_fill(hidden, -torch.inf)
        out: torch.Tensor = s.softmax(-1) @ value.double()
        return out.to(query.dtype)

    def longer(query: Any, key: Any, value: Any, *, is_causal: bool = False) -> Any:
        return at_the_ends(query, key, value, is_causal=is_causal) * (1 + (query.shape[2] > 4))

    for len_q, len_k in ((5, 9), (9, 5), (7, 2), (5, 5)):
        problem = replace(LATE, len_q=len_q, len_k=len_k, is_causal=True)
        for fn, verdict in ((at_the_ends, Verdict.PASS), (longer, Verdict.VIOLATION)):
            kernel = Kernel(fn, causal_alignment="bottom_right", masked_rows="nan")
            for seed in range(4):
                check = flashcheck.check(
                    kernel, replace(problem, seed=seed), property="causal_prefix"
                )
                # The shorter problem may be as long as five queries too.
                if fn is at_the_ends or len_q == 5:
                    assert check.verdict is verdict, (len_q, len_k, seed, check.message)


def test_kernel_that_refuses() -> None:
    check = flashcheck.check(right, replace(LATE, scale=2.0))
    assert check.verdict is Verdict.UNSUPPORTED
    assert "right does not name scale, which this problem has" in check.message


def test_mistakes_of_the_caller() -> None:
    with pytest.raises(ValueError, match=r"property 'agrement' is none of agreement, .*repeat"):
        flashcheck.check(right, LATE, property="agrement")
    with pytest.raises(ValueError, match=r"right has no configuration 'x'; it has none"):
        flashcheck.check(right, LATE, config="x")
    with pytest.raises(ValueError, match=r"dtype 'float31' is none of float64, float32"):
        flashcheck.space(right, "float31")
    with pytest.raises(TargetError, match=r"no kernel is called 'numpy_onlin'; did you mean"):
        flashcheck.check("numpy_onlin", LATE)


def test_declared_not_to_take() -> None:
    """A kernel is not judged on what it is declared not to take."""

    def scaled(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float
    ) -> torch.Tensor:
        raise AssertionError("it is not called")

    half = flashcheck.Kernel(right, dtypes=("float16",))
    positive = flashcheck.Kernel(scaled, positive_scale=True)
    wide = flashcheck.Kernel(right, head_dims=(64,))
    for kernel, problem, said in (
        (half, LATE, "right does not take float32, which this problem has"),
        (wide, LATE, "right does not take head size"),
        (positive, replace(LATE, scale=-1.0), "scaled does not take a scale of -1.0"),
        (right, replace(LATE, scale=0.5), "right does not name scale"),
    ):
        check = flashcheck.check(kernel, problem)
        assert check.verdict is Verdict.UNSUPPORTED
        assert said in check.message
    with pytest.raises(TypeError, match=r"problem is of type Inputs, not a flashcheck.Problem"):
        flashcheck.check(right, LATE.inputs())  # type: ignore[arg-type]


def test_space() -> None:
    """Only what the kernel takes."""
    assert flashcheck.space(right).options == {"is_causal"}
    assert flashcheck.space("numpy_online", "bfloat16").dtype == "bfloat16"

    def picky(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if query.dtype != torch.float32:
            raise TypeError("float32 only")
        return right(query, key, value)

    # Only a kernel that is interpreted gets small problems alone, whatever else is loaded.
    if importlib.util.find_spec("triton") is not None:
        assert flashcheck.space("triton_flash", device="cpu").max_length == INTERPRETED_LENGTH
    assert flashcheck.space(lambda query, key, value: query).max_length > INTERPRETED_LENGTH

    with pytest.raises(ValueError, match=r"picky refuses float16: TypeError: float32 only"):
        flashcheck.space(picky, "float16")
