"""Mutation: what operators make of a line, and that survivors and refusals are told plainly."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from flashcheck.cli import main
from flashcheck.kernel import TargetError
from flashcheck.mutation import page
from flashcheck.mutation.campaign import campaign
from flashcheck.mutation.mutant import Mutant, mutants
from flashcheck.mutation.outcome import Difference, Outcome
from flashcheck.mutation.reach import compiled
from flashcheck.mutation.source import Source

pytestmark = pytest.mark.cpu

SIGNATURE = "def f(q, k, v, m, l, acc, alpha, p, x, mask, stride_kn, stride_vn, offs_m, n):\n"


def _edits(line: str) -> set[str]:
    source = Source(f"{SIGNATURE}    {line}\n    return x\n".encode())
    return {m.after for m in mutants(source, {2})}


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("acc = acc * alpha + p @ v", "acc = acc + p @ v"),
        ("acc = acc * alpha + p @ v", "acc = (acc + p @ v) * alpha"),
        ("acc = alpha * acc + p @ v", "acc = acc + p @ v"),
        ("acc = acc * alpha + p @ v", "pass"),
        ("acc *= alpha[:, None]", "pass"),
        ("x = (q @ k) * (1 / n)", "x = (q @ k)"),
        ("m = tl.full([4], float('-inf'), tl.float32)", "m = tl.full([4], 0.0, tl.float32)"),
        ("m = np.full(n, -np.inf)", "m = np.full(n, -1e4)"),
        ("l = tl.zeros([4], tl.float32)", "l = tl.full([4], 1.0, tl.float32)"),
        ("x = q <= k", "x = q < k"),
        ("x = q != k", "x = q == k"),
        ("for i in range(0, n, 16): x = i", "for i in range(0, n - 1, 16): x = i"),
        ("x = k[m:n]", "x = k[m + 1:n]"),
        ("x = m + tl.arange(0, 16)", "x = m + (tl.arange(0, 16) + 1)"),
        ("x = tl.cdiv(m, n)", "x = (m // n)"),
        ("x = (p + q).to(v.dtype)", "x = (p + q)"),
        ("x = p.astype(np.float32)", "x = p"),
        ("x = p.masked_fill(mask, 0.0)", "x = p"),
        ("x = tl.where(mask, p, 0.0)", "x = p"),
        ("x = tl.load(k + n, mask=offs_m < n, other=0.0)", "x = tl.load(k + n)"),
        ("x = mask & (m < n)", "x = mask"),
        ("x = n * stride_kn", "x = n * stride_vn"),
        ("x = f(stride_kn, stride_vn)", "x = f(stride_vn, stride_kn)"),
        ("x = q @ k", "x = q @ q"),
        ("x = n // 2", "x = n % 2"),
        ("x = m - n", "x = m + n"),
        ("x = tl.maximum(m, l)", "x = tl.minimum(m, l)"),
        ("x = tl.exp2(m - l)", "x = tl.exp(m - l)"),
        ("x = m if n > 1 else l", "x = m if True else l"),
        ("x = p.sum(axis=-1, keepdims=True)", "x = p.sum(axis=-1)"),
        ("x = p.sum(axis=-1, keepdims=True)", "x = p.sum(axis=-2, keepdims=True)"),
        ("x = offs_m[:, None]", "x = offs_m[None, :]"),
        ("x = tl.sum(p, 1)", "x = tl.sum(p, 0)"),
        ("x = ~mask", "x = mask"),
    ],
)
def test_operator(line: str, after: str) -> None:
    assert after in _edits(line)


@pytest.mark.parametrize(
    "line",
    ["assert m <= n, 'm - n'", "raise ValueError(f'{m - n}')", "x = k.dtype", "'''m - n'''"],
)
def test_left_alone(line: str) -> None:
    assert not _edits(line)


def test_one_edit_and_nothing_else() -> None:
    """Comments and other lines stay."""
    source = Source(f"{SIGNATURE}    # kept\n    x = (m +  # too\n         n)\n".encode())
    (mutant,) = (m for m in mutants(source, {3}) if m.operator == "arithmetic")
    assert (mutant.before, mutant.after) == ("x = (m +  # too", "x = (m -  # too")
    assert mutant.text == source.text.replace(b"m +", b"m -")


def test_compiled_functions_that_run() -> None:
    source = Source(
        b"@triton.jit\ndef a(x):\n    return b(x)\n\n"
        b"@triton.jit\ndef b(x):\n    return x\n\n"
        b"@triton.jit\ndef c(x):\n    return x\n\n"
        b"def run(x):\n    a[(1,)](x)\n"
    )
    assert compiled(source, frozenset({14})) == {3, 7}
    assert compiled(source, frozenset()) == {3, 7, 11}  # another file launches them


SIBLING = "def unit(x):\n    return x / x.sum(-1, keepdims=True)\n"
KERNEL = """
import numpy as np
import torch

from sibling import unit


def attention(query, key, value, scale=None):
    if key.shape[2] == 0:
        raise NotImplementedError("a key is needed")
    q, k, v = (x.double().numpy() for x in (query, key, value))
    sm_scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = (q @ k.swapaxes(-1, -2)) * sm_scale
    count = s.size + 2
    p = unit(np.exp(s - s.max(-1, keepdims=True)))
    return torch.from_numpy(p @ v).to(query.dtype)


def never(x):
    return x + 1
"""


@pytest.mark.slow
def test_unguarded_line(tmp_path: Path) -> None:
    """A line that changes nothing survives; edits of the others are killed."""
    (tmp_path / "sibling.py").write_text(SIBLING)
    file = tmp_path / "mine.py"
    file.write_text(KERNEL)
    made = campaign(f"{file}:attention", dtypes=["float32"], checks=60)
    assert not any("x + 1" in m.before for m in made.tried)
    found = list(made.run())
    # A pool that is still shut down when the interpreter ends may fail then.
    assert not any("ExecutorManager" in type(t).__name__ for t in threading.enumerate())
    alike = page.survivors(found)[page.ALIKE]
    line = KERNEL.split("\n").index("    count = s.size + 2") + 1
    # Nothing could guard a line that changes nothing.
    assert line not in {number for number, _ in page.unguarded(found)}
    assert any(o.mutant.line == line and o.difference.compared for o in alike)
    killed = {o.mutant.after for o in found if o.fate == "killed"}
    assert "s = (q @ k.swapaxes(-1, -2))" in killed
    assert "if True:" in killed  # it refuses everything
    assert file.read_text() == KERNEL
    # The file beside it, by --source.
    made = campaign(f"{file}:attention", file=str(tmp_path / "sibling.py"), dtypes=["float32"],
                    checks=60)  # fmt: skip
    assert {m.line for m in made.tried} == {2}
    assert any(o.fate == "killed" for o in made.run())


@pytest.mark.slow
def test_a_kernel_that_fails_as_it_is(tmp_path: Path) -> None:
    """There is nothing to measure; how it fails is said, since a timeout is not a wrong result."""
    (tmp_path / "sibling.py").write_text(SIBLING)
    file = tmp_path / "mine.py"
    file.write_text(KERNEL.replace("p @ v", "p @ v * 2"))
    with pytest.raises(TargetError, match=r"as it is fails \w+ \(VIOLATION\) in float32"):
        campaign(f"{file}:attention", dtypes=["float32"], checks=60)


TRITON = """
import torch
import triton
import triton.language as tl


@triton.jit
def _kernel(q, k, v, out, scale, L, D, BLOCK_L: tl.constexpr, BLOCK_D: tl.constexpr):
    row, head = tl.program_id(0), tl.program_id(1)
    n, d = tl.arange(0, BLOCK_L), tl.arange(0, BLOCK_D)
    inside = (n[:, None] < L) & (d[None, :] < D)
    at = head * L * D + n[:, None] * D + d[None, :]
    query = tl.load(q + head * tl.num_programs(0) * D + row * D + d, mask=d < D, other=0.0)
    s = tl.sum(query[None, :].to(tl.float32) * tl.load(k + at, mask=inside, other=0.0), 1) * scale
    s = tl.where(n < L, s, float("-inf"))
    p = tl.exp(s - tl.max(s, 0))
    acc = tl.sum(p[:, None] * tl.load(v + at, mask=inside, other=0.0).to(tl.float32), 0)
    at_out = head * tl.num_programs(0) * D + row * D + d
    tl.store(out + at_out, (acc / tl.sum(p, 0)).to(out.dtype.element_ty), mask=d < D)


def attention(query, key, value):
    if key.shape[2] == 0 or value.shape[3] != query.shape[3]:
        raise NotImplementedError("a key, and one head size")
    query, key, value = (x.contiguous() for x in (query, key, value))
    out = torch.empty_like(query)
    b, h, rows, dim = query.shape
    _kernel[(rows, b * h)](query, key, value, out, dim**-0.5, key.shape[2], dim,
                           triton.next_power_of_2(key.shape[2]), triton.next_power_of_2(dim))
    return out
"""


@pytest.mark.slow
def test_triton(tmp_path: Path) -> None:
    """Triton reads the source of a function again: it finds the mutant's."""
    file = tmp_path / "mine.py"
    file.write_text(TRITON)
    made = campaign(f"{file}:attention", dtypes=["float32"], checks=12)
    chosen = [m for m in made.tried if m.after.startswith(("s = s", "p = tl.exp2("))]
    made = type(made)(made.plan, made.source, made.lines, made.missed, made.found, tuple(chosen))
    found = list(made.run())
    assert len(found) == 2
    assert [o.fate for o in found] == ["killed", "killed"]
    assert {o.verdict for o in found} == {"VIOLATION"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["math:exp"], "cannot be called"),
        (["torch.nn.functional:softmax"], "torch's own"),
        (["{made}"], "cannot be read"),
        (["no_such"], "no kernel is called 'no_such'"),
        (["numpy_online", "--fault", "acc_not_rescaled"], "--fault goes without TARGET"),
        (["--max-mutants", "3"], "--max-mutants goes with TARGET"),
        (["numpy_online", "--budget", "30s"], "a number of checks"),
    ],
)
def test_refusals(arguments: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "made.py"
    file.write_text("exec('def attention(query, key, value): return query')\n")
    given = [a.format(made=f"{file}:attention") for a in arguments]
    result = CliRunner().invoke(main, ["power", *given])
    assert result.exit_code == 2
    assert said in result.output


def _outcome(fate: str, line: int, **about: float) -> Outcome:
    mutant = Mutant(line, "comparison", "a < b", "a <= b", b"")
    difference = Difference(compared=40, **about)  # type: ignore[arg-type]
    return Outcome(mutant, fate, "agreement", difference=difference)  # type: ignore[arg-type]


def test_what_a_page_counts() -> None:
    found = [_outcome("killed", 1) for _ in range(8)]
    found += [_outcome("survived", 2), _outcome("invalid", 4)]
    found += [_outcome("survived", 3, differing=2, ratio=0.5)]
    assert page.code(found) == 0
    assert page.headline(found).startswith("8 of 9 mutants killed, lower limit 0.571; 1 within")
    found += [_outcome("survived", 1, differing=1, ratio=3.0)]
    assert page.code(found) == 1
    assert list(page.survivors(found)) == [page.MISSED, page.WITHIN, page.ALIKE]
    assert page.unguarded(found) == [(3, 1)]  # line 2 has a mutant that may be equivalent
