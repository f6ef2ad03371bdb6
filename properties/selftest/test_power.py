"""Power: pages of faults, their edits, their witnesses, and what a matrix says."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from flashcheck import fault, gating
from flashcheck.cli import main
from flashcheck.fault import FaultError, inject
from flashcheck.formats import DTYPES, FLOAT8
from flashcheck.law import laws
from flashcheck.loading import registered
from flashcheck.power import matrix, page
from flashcheck.power.matrix import Cell, lower_limit, tally
from flashcheck.power.sample import needed, sample
from flashcheck.power.trial import Trial
from flashcheck.power.witness import CLEAR, Witness, witnesses
from flashcheck.probe import probe
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

pytestmark = pytest.mark.cpu

FAULTS = fault.names()
IN_PROCESS = ("numpy_naive", "numpy_online", "fp32_stats", "fp32_backward", "fp32_float8")

UNWRITTEN = (
    "counter_not_reset", "empty_keys_not_written", "grid_axis_too_long", "key_tail_not_cleared",
    "last_row_not_stored", "lse_of_empty_rows_not_stored", "output_columns_bounded_by_head_dim",
    "queries_bounded_by_longest_keys", "query_blocks_floored", "rows_without_keys_not_written",
    "sequence_without_keys_not_written", "value_tail_not_zeroed",
)  # fmt: skip
"""They show what memory or a counter happens to hold, which one problem alone cannot repeat."""


@pytest.mark.parametrize("name", FAULTS)
def test_page(name: str) -> None:
    """A page is whole, its edits fit, and what it says kills it does."""
    read = fault.read(name)
    assert read.title.endswith(".")
    assert set(read.killed_by) <= {law.name for law in laws()}
    assert set(read.edits) <= set(registered())
    for kernel, edits in read.edits.items():
        tree = ast.parse(inspect.getsource(import_module(f"{fault.KERNELS}.{kernel}")))
        before = ast.dump(tree)
        assert ast.dump(inject(tree, edits, name)) != before
    seen_to_kill = {w.property for w in witnesses() if w.fault == name}
    assert seen_to_kill & set(read.killed_by), f"its witnesses break {seen_to_kill}"


def test_no_two_faults_are_the_same_edit() -> None:
    seen: dict[tuple[str, str], str] = {}
    for name in FAULTS:
        for kernel, edits in fault.read(name).edits.items():
            source = inspect.getsource(import_module(f"{fault.KERNELS}.{kernel}"))
            key = kernel, ast.dump(inject(ast.parse(source), edits, name))
            assert key not in seen, f"{name} is {seen.get(key)} in {kernel}"
            seen[key] = name


@cache
def _spaces(kernel: str) -> dict[str, Space]:
    runner = InProcess(kernel)
    return probe(runner, runner.start(), (*DTYPES, *FLOAT8)).spaces


def _ratio(witness: Witness) -> float:
    check = witness.check(_spaces(witness.kernel)[witness.problem.dtype])
    return check.ratio if check.failed else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*FAULTS} - {*UNWRITTEN}))
def test_witnesses(name: str) -> None:
    """Each shows its fault, far beyond the bound, and the kernel without it passes."""
    kept = [w for w in witnesses() if w.fault == name and w.kernel in IN_PROCESS]
    for witness in kept:
        assert _ratio(witness) >= CLEAR, witness.key
        assert _ratio(replace(witness, fault="")) == 0, witness.key


def test_every_fault_has_a_witness() -> None:
    assert set(FAULTS) == {w.fault for w in witnesses()}
    assert len({w.key for w in witnesses()}) == len(witnesses())


@pytest.mark.parametrize(
    ("old", "new", "result"),
    [
        ("x = 1", "x = 2\ny = 3", "for i in a:\n    x = 2\n    y = 3"),
        ("for i in a: ...", "for i in b: ...", "for i in b:\n    x = 1"),
        ("for i in a: ...", "if c: ...", "if c:\n    x = 1"),
    ],
)
def test_inject(old: str, new: str, result: str) -> None:
    tree = ast.parse("for i in a:\n    x = 1  # a comment")
    assert ast.unparse(inject(tree, [(old, new)], "f")) == result


@pytest.mark.parametrize("text", ["x = 2", "x = 1\nx = 1"])
def test_an_edit_that_does_not_fit(text: str) -> None:
    with pytest.raises(FaultError, match=r"'f' no longer fits: 'x = 1' occurs [02] times"):
        inject(ast.parse(text), [("x = 1", "x = 3")], "f")


@pytest.mark.parametrize(
    ("killed", "trials", "limit"), [(23, 23, 0.878), (59, 59, 0.950), (0, 5, 0.0), (9, 10, 0.606)]
)
def test_lower_limit(killed: int, trials: int, limit: float) -> None:
    """Figures of tables of the limit by Clopper and Pearson."""
    assert lower_limit(killed, trials) == pytest.approx(limit, abs=5e-4)


def _trial(fault_name: str, seed: int, problems: int, by: str = "agreement") -> Trial:
    return Trial("numpy_online", fault_name, "float32", seed, problems, 3 * problems, by)


def test_what_a_matrix_says() -> None:
    found = [_trial("acc_not_rescaled", i, i + 1) for i in range(9)]
    found += [_trial("acc_not_rescaled", 9, 250, ""), _trial("", 0, 250, "")]
    t = tally(x for x in found if x.fault)
    assert (t.trials, t.killed, t.percentile(0.5), t.percentile(0.9)) == (10, 9, 5, 9)
    assert t.percentile(0.95) == float("inf")
    (line,) = page.survivors(found)
    assert line.startswith("acc_not_rescaled in numpy_online, float32: survived 1 of 10 searches")
    assert page.rejected([*found, _trial("", 1, 2)])[0].startswith("numpy_online as it is")
    text = page.markdown(found, [], "flashcheck power")
    assert text.index("survived 1 of 10") < text.index("## Kernels")
    assert "9 of 10 killed, lower limit 0.606" in text


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    report = tmp_path / "power.md"
    arguments = ["--fault", "acc_not_rescaled", "--kernel", "numpy_online", "--seeds", "2"]
    options = ["--no-clean", "--jobs", "1", "--report", f"md={report}"]
    result = CliRunner().invoke(main, ["power", *arguments, *options])
    assert result.exit_code == 0, result.output
    assert "1 fault: 8 of 8 killed" in result.output
    assert "| `numpy_online`, bfloat16 | 2 / 2 |" in report.read_text()


@pytest.mark.parametrize(
    ("option", "given", "said"),
    [
        ("--fault", "no_such", "there is no no_such"),
        ("--kernel", "no_such", "no fault has a witness there"),
        ("--seeds", "many", "'many' is not N or N,KERNEL=N"),
        ("--seeds", "3,torch_sdpa=1", "'torch_sdpa' is none of the kernels numpy_online, fp32"),
        ("--seeds", "3,triton_flash=0", "at least 1"),
    ],
)
def test_command_that_cannot_run(option: str, given: str, said: str) -> None:
    result = CliRunner().invoke(main, ["power", option, given])
    assert result.exit_code == 2
    assert said in result.output


def test_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds by kernel, of each fault where it has a witness and of the kernel as it is."""
    ran: list[Cell] = []

    def run(cells: list[Cell], **_: object) -> list[str]:
        ran.extend(cells)
        return ["a cell: cannot be loaded"]

    monkeypatch.setattr(matrix, "run", run)
    given = ["--kernel", "fp32_stats,triton_flash", "--fault", "tf32_dot,acc_not_rescaled"]
    options = ["--dtype", "fp32", "--seeds", "2,triton_flash=1", "--seed", "5"]
    result = CliRunner().invoke(main, ["power", *given, *options], catch_exceptions=False)
    assert result.exit_code == 2
    assert "could not run a cell" in result.output
    assert set(ran) == {
        Cell("fp32_stats", "acc_not_rescaled", (5, 6), ("float32",)),
        Cell("triton_flash", "acc_not_rescaled", (5,), ("float32",)),
        Cell("triton_flash", "tf32_dot", (5,), ("float32",)),
        Cell("fp32_stats", "", (5, 6), ("float32",)),
        Cell("triton_flash", "", (5,), ("float32",)),
    }


# -- the sample in a run of the gate ---------------------------------------------------------


def test_trials_needed() -> None:
    assert [needed(p) for p in (0.88, 0.95, 0.5)] == [24, 59, 5]
    assert lower_limit(needed(0.95), needed(0.95)) >= 0.95


@pytest.mark.slow
def test_sample_is_within_its_share() -> None:
    found = sample(30, 0, {"float32"})
    assert found
    assert {t.dtype for t in found} == {"float32"}
    assert sum(t.checks for t in found[:-1]) < 30
    again = sample(30, 0, {"float32"})
    assert [(t.kernel, t.fault, t.seed) for t in again] == [
        (t.kernel, t.fault, t.seed) for t in found
    ]
    # What memory happens to hold decides when the others are found.
    for first, second in zip(found, again, strict=True):
        assert first.fault in UNWRITTEN or first == second


@pytest.mark.slow
def test_float8_has_a_sample_of_its_own() -> None:
    found = sample(0, 1, {"float8_e5m2"}, trials=needed(0.9))
    assert {(t.kernel, t.dtype) for t in found} == {("fp32_float8", "float8_e5m2")}
    assert len({t.seed for t in found}) == needed(0.9) > len({t.fault for t in found})


@pytest.mark.slow
@pytest.mark.parametrize("killed", [True, False])
def test_power_below_what_is_asked_for(
    killed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose sample survives proves nothing; the report says what survived."""
    by = "agreement" if killed else ""
    trials = [_trial("acc_not_rescaled", seed, 4, by) for seed in range(59)]
    monkeypatch.setattr(gating, "sample", lambda *_: trials)
    monkeypatch.chdir(tmp_path)
    arguments = ["numpy_naive", "--dtype", "float32", "--budget", "smoke", "--min-power", "0.95"]
    options = ["--no-isolate", "--seed", "0", "--report", "md=gate.md"]
    result = CliRunner().invoke(main, ["gate", *arguments, *options])
    assert result.exit_code == (0 if killed else 3), result.output
    said = " ".join(result.output.split())
    section = Path("gate.md").read_text().split("\n## Power\n\n")[1].split("\n\n")[0]
    points = section.replace("\\", "").splitlines()
    if killed:
        (line,) = points
        assert line.startswith("- 59 of 59 faults in kernels broken on purpose caught, lower limit")
    else:
        assert "power is at least 0.000 (0 of 59 faults caught), below 0.95" in said
        survivor = "acc_not_rescaled in numpy_online, float32: survived 59 of 59 searches"
        assert points[1].startswith(f"- {survivor}")
        assert f"power: {survivor}" in said
    assert f"power: {points[0].removeprefix('- ')}" in said
