"""The search for a correct kernel that is failed: a short one here, and that it can find one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundness
import styles
from soundness import Tally, missed, page, run_task

from flashcheck.bounds import bound
from flashcheck.formats import DTYPES
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract

TASKS = range(len(DTYPES))


@pytest.mark.slow
def test_no_correct_kernel_is_failed() -> None:
    tally = Tally()
    for task in TASKS:
        tally.join(run_task(7, (task, 75)))
    assert not tally.violations, "\n".join(tally.violations)
    assert not missed(tally)
    assert sum(tally.counts["problems", dtype] for dtype in DTYPES) == 300
    # It comes near, in every dtype: these are no kernels that hardly err.
    assert all(tally.largest["ratio", dtype, "out"] > 0.05 for dtype in DTYPES)


@pytest.mark.parametrize("task", TASKS)
def test_a_bound_that_is_too_narrow_is_found(task: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(*given: Any) -> Any:
        b = bound(*given)
        return replace(b, out=b.out / 16)

    monkeypatch.setattr(soundness, "bound", narrow)
    tally = run_task(7, (task, 60))
    assert any("times the bound, out" in said for said in tally.violations)


def test_a_single_problem_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["soundness.py", "--only", "2:17", "--seed", "7"])
    assert soundness.main() == 0
    said = capsys.readouterr().out
    assert "float16" in said
    assert "contract=Contract(" in said
    assert "task 2:17" in said


def test_a_run_that_catches_nothing_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally()
    assert "no mistake was caught" in missed(tally)
    tally.add("mistake", "sink twice", by=20)
    assert "sink twice was never caught" in missed(tally)
    tally.violations.append("float32, task 1:2: online: 3 times the bound")
    page(tally)
    said = capsys.readouterr().out
    assert "**1 violations in 0 problems**" in said
    assert "- float32, task 1:2: online" in said


@pytest.mark.parametrize("how", ["libm", "rounded", "polynomial", "high", "low"])
@pytest.mark.parametrize("octaves", [False, True])
@pytest.mark.parametrize(
    ("one", "allowed"),
    [(np.float32, 2.0**-13), (np.float32, 2.0**-10), (np.float32, 2.0**-21),
     (np.float64, 2.0**-50)],
    ids=str,
)  # fmt: skip
def test_every_exp_keeps_its_error(
    how: styles.Exp, octaves: bool, one: Any, allowed: float
) -> None:
    """All of it is spent where it is to be; so a bound that grants less would be left."""
    x = np.linspace(-80, 15, 20001).astype(one)
    got = styles.exponential(x, one, how, allowed, octaves=octaves, up=how == "high")
    wide = x.astype(np.longdouble)
    error = got / (np.exp2(wide) if octaves else np.exp(wide)) - 1
    if how == "polynomial" and not octaves:  # log2(e) times x is a rounding of the argument
        error = np.maximum(np.abs(error) - np.abs(wide) * np.finfo(one).eps * 1.01, 0)
    assert np.abs(error).max() <= allowed
    if how in ("high", "low"):
        assert np.abs(error).min() > allowed / 4


@pytest.mark.parametrize(("qk", "part"), [("tf32", 2.0**-7), ("tf32x3", 2.0**-7)])
def test_tf32_of_a_subnormal_factor(qk: Any, part: float) -> None:
    """It keeps fewer bits than TF32's 11, and a large key shows what is lost."""
    q = np.full((1, 1, 1, 1), 2.0**-130 * (1 + part + part / 4))
    k = np.array([2.0**122, -(2.0**122)]).reshape(1, 1, 2, 1)
    x = Inputs("float32", q, k, np.array([1.0, -1.0]).reshape(1, 1, 2, 1), scale=1.0)
    found, b = soundness.forward(x, styles.Style(contract=Contract(qk=qk)))
    assert np.isfinite(b.out).all()
    assert 0.01 < max(w.ratio for w in found) <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_drawn_style_keeps_what_it_declares(dtype: str) -> None:
    rng = np.random.default_rng(3)
    drawn = [styles.draw(rng, dtype) for _ in range(2000)]
    names = {name for name, _ in drawn}
    assert len(names) > 15
    for name, style in drawn:
        declares = style.contract != Contract()
        assert declares == name.startswith("declared: ")
        if style.contract.kv_block is not None:
            assert style.contract.kv_block == style.block
        if style.contract.exp_form == "exp":
            asked = (style.octaves, style.argument, style.normalize, style.merge)
            assert asked == (False, "difference", "last", "parts")
