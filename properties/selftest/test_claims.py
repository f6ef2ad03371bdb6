"""Each claim about online softmax holds as measured, and fails where what it measures is wrong."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from flashcheck import claims as package
from flashcheck.claims import (
    Claim,
    Finding,
    backward,
    exactness,
    mistakes,
    page,
    recurrence,
    signed_bias,
    sizes,
    tiling,
    traffic,
)
from flashcheck.claims.machine import Machine, Memory
from flashcheck.cli import main
from flashcheck.formats import Array

pytestmark = pytest.mark.cpu

HOLDING = (Finding.HOLDS, Finding.HOLDS_IF)


@cache
def counts(
    naive: tiling.Naive = tiling.naive, tiled: tiling.Tiled = tiling.tiled
) -> traffic.Counts:
    """Fewer and smaller runs than the command's."""
    return traffic.Counts(naive, tiled, lengths=(256, 512), dims=(8, 16), blocks=(16, 32))


@cache
def passes() -> backward.Backwards:
    return backward.run()


# -- what is wrong on purpose -------------------------------------------------------------


def wrong_online(s: Array, v: Array, **options: Any) -> recurrence.State:
    """The accumulator is not rescaled."""
    return recurrence.online(s, v, **options, step=mistakes.acc_left)


def unweighted(x: recurrence.State, y: recurrence.State, exp: recurrence.Exp) -> recurrence.State:
    return recurrence.State(np.maximum(x.m, y.m), x.l + y.l, x.a + y.a)


def unguarded(x: recurrence.State, y: recurrence.State, exp: recurrence.Exp) -> recurrence.State:
    m = np.maximum(x.m, y.m)
    with np.errstate(invalid="ignore"):
        of_x, of_y = exp(x.m - m), exp(y.m - m)
    return recurrence.State(m, x.l * of_x + y.l * of_y, x.a * of_x + y.a * of_y)


def reads_twice(machine: Machine, q: Memory, k: Memory, v: Memory) -> Memory:
    """The scores, from memory, once more than needed; and V as often as P has rows."""
    o = tiling.naive(machine, q, k, v)
    s = machine.memory("s", np.zeros((len(q), len(q))))
    s[:]
    for _ in range(len(q)):
        v[:]
    return o


def computes_nothing(machine: Machine, q: Memory, k: Memory, v: Memory) -> Memory:
    """The right counts, the wrong result."""
    tiling.naive(machine, q, k, v)
    return machine.memory("o", np.zeros(v.shape))


def stores_scores(
    machine: Machine, q: Memory, k: Memory, v: Memory, **options: Any
) -> tuple[Memory, Memory]:
    """The naive form, called tiled; its products are made twice."""
    o, lse = tiling.tiled(machine, q, k, v, **options)
    tiling.naive(machine, q, k, v)
    return o, lse


def never_skips(
    machine: Machine, q: Memory, k: Memory, v: Memory, *, causal: bool, **options: Any
) -> tuple[Memory, Memory]:
    """Every block is loaded, under a causal mask too."""
    o, lse = tiling.tiled(machine, q, k, v, causal=causal, **options)
    if causal:
        tiling.tiled(machine, q, k, v, **options)
    return o, lse


def stores_two(
    machine: Machine, q: Memory, k: Memory, v: Memory, **options: Any
) -> tuple[Memory, Memory]:
    """The maximum and the normalizer, each on its own."""
    o, lse = tiling.tiled(machine, q, k, v, **options)
    machine.memory("l", lse.contents())[:] = lse.contents()
    return o, lse


def unscaled(machine: Machine, x: dict[str, Memory]) -> tuple[Memory, Memory, Memory]:
    dq, dk, dv = backward.recomputed(machine, x)
    return machine.memory("dq", 2 * dq.contents()), dk, dv


SLOW_MEMORY = sizes.Device("slow", flops=1e12, bandwidth=1e12, cache=2**40)


CLAIMS: dict[str, tuple[Callable[[], Claim], Callable[[], Claim]]] = {
    "exact_in_rationals": (
        exactness.exact_in_rationals,
        lambda: exactness.exact_in_rationals(wrong_online),
    ),
    "ordinary_error": (
        exactness.ordinary_error,
        lambda: exactness.ordinary_error(wrong_online),
    ),
    "large_scores_error": (
        exactness.large_scores_error,
        lambda: exactness.large_scores_error(wrong_online),
    ),
    "unshifted_is_nan": (
        exactness.unshifted_is_nan,
        lambda: exactness.unshifted_is_nan(recurrence.direct),
    ),
    "float16_overflow": (
        exactness.float16_overflow,
        lambda: exactness.float16_overflow(fmt="bfloat16"),
    ),
    "splits_merge": (exactness.splits_merge, lambda: exactness.splits_merge(unweighted)),
    "empty_splits": (exactness.empty_splits, lambda: exactness.empty_splits(unguarded)),
    "matrix_per_head": (sizes.matrix_per_head, lambda: sizes.matrix_per_head(4096)),
    "matrix_per_layer": (sizes.matrix_per_layer, lambda: sizes.matrix_per_layer(32)),
    "score_time": (
        lambda: sizes.score_time(counts()),
        lambda: sizes.score_time(counts(naive=reads_twice)),
    ),
    "ridge": (sizes.ridge, lambda: sizes.ridge(SLOW_MEMORY)),
    "softmax_intensity": (
        sizes.softmax_intensity,
        lambda: sizes.softmax_intensity(SLOW_MEMORY),
    ),
    "bound_by_bytes": (sizes.bound_by_bytes, lambda: sizes.bound_by_bytes(device=SLOW_MEMORY)),
    "short_sequences": (sizes.short_sequences, lambda: sizes.short_sequences(SLOW_MEMORY)),
    "score_passes": (
        lambda: traffic.score_passes(counts()),
        lambda: traffic.score_passes(counts(naive=reads_twice)),
    ),
    "never_stored": (
        lambda: traffic.never_stored(counts()),
        lambda: traffic.never_stored(counts(tiled=stores_scores)),
    ),
    "naive_law": (
        lambda: traffic.naive_law(counts()),
        lambda: traffic.naive_law(counts(naive=reads_twice)),
    ),
    "tiled_law": (
        lambda: traffic.tiled_law(counts()),
        lambda: traffic.tiled_law(counts(tiled=stores_scores)),
    ),
    "same_products": (
        lambda: traffic.same_products(counts()),
        lambda: traffic.same_products(counts(tiled=stores_scores)),
    ),
    "bytes_ratio": (
        lambda: traffic.bytes_ratio(counts()),
        lambda: traffic.bytes_ratio(counts(tiled=stores_scores)),
    ),
    "causal_skip": (traffic.causal_skip, lambda: traffic.causal_skip(never_skips)),
    "one_scalar": (
        lambda: backward.one_scalar(passes()),
        lambda: backward.one_scalar(backward.run(forward=stores_two)),
    ),
    "more_flops": (
        lambda: backward.more_flops(passes()),
        lambda: backward.more_flops(backward.run(recomputed=backward.kept)),
    ),
    "fewer_bytes": (
        lambda: backward.fewer_bytes(passes()),
        lambda: backward.fewer_bytes(backward.run(recomputed=backward.kept)),
    ),
    "gradients": (
        lambda: backward.fewer_bytes(passes()),
        lambda: backward.fewer_bytes(backward.run(recomputed=unscaled)),
    ),
    "zero_start": (mistakes.zero_start, lambda: mistakes.zero_start(-np.inf)),
    "acc_not_rescaled": (
        mistakes.acc_not_rescaled,
        lambda: mistakes.acc_not_rescaled(recurrence.step),
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_claim(name: str) -> None:
    right, falsified = CLAIMS[name]
    claim = right()
    assert claim.finding in HOLDING, claim
    assert claim.condition or claim.finding is Finding.HOLDS, claim
    wrong = falsified()
    assert wrong.finding is Finding.DOES_NOT_HOLD, wrong
    assert wrong.verdict == "DOES NOT HOLD"


def test_a_wrong_result_is_no_evidence() -> None:
    """Counts of a kernel that does not compute attention prove nothing."""
    wrong = counts(naive=computes_nothing)
    for claim in (traffic.naive_law, traffic.same_products, traffic.bytes_ratio):
        assert claim(wrong).finding is Finding.DOES_NOT_HOLD


def test_every_claim_of_the_command_is_falsified_here() -> None:
    modules = {m.__name__ for m in (exactness, sizes, traffic, backward, mistakes)}
    used = {
        name
        for name, made in vars(package.derivation).items()
        if inspect.isfunction(made) and made.__module__ in modules and name != "run"
    }
    assert used == set(CLAIMS) - {"gradients"}


# -- the machine --------------------------------------------------------------------------


def test_the_machine_counts() -> None:
    machine = Machine()
    x, y = machine.memory("x", np.ones((3, 4))), machine.memory("y", np.zeros((3, 2)))
    a = x[:, 1:]
    assert machine.reads == {"x": 9}
    b = a @ machine.chip(np.ones((3, 2)))
    assert machine.multiply_adds == 3 * 2 * 3
    b -= b.max(axis=1, keepdims=True)
    np.exp(b, out=b)
    assert machine.operations == {"multiply_add": 18, "maximum": 6, "subtract": 6, "exp": 6}
    assert machine.flops == 2 * 18 + 18
    y[1:] = b[1:]
    assert machine.writes == {"y": 4}
    assert machine.traffic == 13
    assert np.array_equal(y.contents(), [[0, 0], [1, 1], [1, 1]])


def test_the_machine_knows_what_is_alive() -> None:
    machine = Machine()
    x = machine.memory("x", np.ones(10))
    a = x[:]
    view = a[2:]
    del a
    assert machine.peak == 10
    x[:5]
    assert machine.peak == 15, "the view keeps what it looks at"
    del view
    x[:]
    assert machine.peak == 15, "what nobody looks at is gone"


def test_multiply_add_is_a_product_in_place() -> None:
    machine = Machine()
    into, x, y = (machine.chip(np.full(shape, 2.0)) for shape in ((2, 3), (2, 5), (5, 3)))
    machine.multiply_add(into, x, y)
    assert np.array_equal(into, np.full((2, 3), 22.0))
    assert machine.multiply_adds == 30


# -- bias ---------------------------------------------------------------------------------


def test_a_repeated_maximum_is_biased_away_from_zero() -> None:
    rows = 4000
    _, lower, upper = signed_bias.interval(signed_bias.signed_errors(rows=rows))
    assert upper < 0
    mean, *_ = signed_bias.interval(signed_bias.signed_errors(values="positive", rows=rows))
    assert lower < -mean < upper
    _, lower, upper = signed_bias.interval(signed_bias.signed_errors(values="normal", rows=rows))
    assert lower < 0 < upper


def test_bias_is_reported_and_never_judged() -> None:
    found = signed_bias.repeated_maximum(rows=500)
    assert {claim.finding for claim in found} == {Finding.REPORTED}


def test_the_interval_narrows_with_the_rows() -> None:
    draws = np.resize([-1.0, 1.0, 3.0], 900)
    mean, lower, upper = signed_bias.interval(draws)
    assert mean == pytest.approx(1)
    # 2.576 standard errors; the variance of the three is 8 / 3.
    assert (upper - lower) / 2 == pytest.approx(2.576 * (8 / 3 / 900) ** 0.5, rel=1e-2)


# -- the command --------------------------------------------------------------------------

SOME = (
    Claim("One", "a |b| c", "1", "1.0", Finding.HOLDS, "by hand", evidence=(("n",), ("12",))),
    Claim("One", "d", "2", "2.0", Finding.HOLDS_IF, "by hand", "n is even"),
    Claim("Two", "e", "-", "0.1", Finding.REPORTED, "by hand"),
)
FALSE = Claim("Two", "f", "3", "4", Finding.DOES_NOT_HOLD, "by hand")


def run(
    monkeypatch: pytest.MonkeyPatch, claims: tuple[Claim, ...], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(package, "measure", lambda: iter(claims))
    done = CliRunner().invoke(main, ["claims", *arguments])
    return done.exit_code, done.output


def test_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = run(monkeypatch, SOME)
    assert code == 0
    assert "2 claims: 1 hold, 1 hold if their condition does, 0 do not hold; 1 measured" in said
    assert "HOLDS IF n is even" in said
    assert said.index("One") < said.index("Two")
    assert "not measured: wall time" in said
    code, said = run(monkeypatch, (*SOME, FALSE))
    assert code == 1
    assert "DOES NOT HOLD" in said
    assert "1 do not hold" in said


def test_report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "new" / "claims.md"
    monkeypatch.setattr("sys.argv", ["flashcheck", "claims", "--report", "md=claims.md"])
    code, _ = run(monkeypatch, (*SOME, FALSE), "--report", f"md={path}")
    assert code == 1, "a report is written of what does not hold, too"
    text = path.read_text(encoding="utf-8")
    assert "flashcheck claims --report md=claims.md" in text.splitlines()[2]
    assert r"| a \|b\| c | 1 | 1.0 | HOLDS | by hand |" in text
    assert "| d | 2 | 2.0 | HOLDS IF n is even | by hand |" in text
    assert text.index("**Not measured**") < text.index("## One") < text.index("## Two")
    assert "|  n |" in text


@pytest.mark.parametrize("report", ["md", "json=x.json", "html=x.html"])
def test_a_report_that_cannot_be_written(report: str, monkeypatch: pytest.MonkeyPatch) -> None:
    code, said = run(monkeypatch, SOME, "--report", report)
    assert code == 2
    assert "--report" in said
    assert "One" not in said, "it is refused before anything is measured"


def test_the_page_counts_no_reported_row() -> None:
    assert page.headline(SOME).startswith("2 claims")
