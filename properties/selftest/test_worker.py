"""The worker: whatever a kernel does, the parent gets a reply, and the next call works."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.deterministic

from flashcheck.inputs import LAYOUTS, Inputs, Layout, Pages
from flashcheck.kernel import Kernel, TargetError
from flashcheck.worker import Call, InProcess, Worker

# What it does is told by the first element of q.
KERNELS = """
import os, signal, sys, time, torch
from flashcheck.kernel import Kernel

def sdpa(q, k, v, attn_mask=None, is_causal=False, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale)

def naughty(q, k, v):
    what = int(q.flatten()[0])
    if what == 1: os.kill(os.getpid(), signal.SIGSEGV)
    if what == 2: time.sleep(1000)
    if what == 3: print("x" * 100000); print("to stdout"); os.write(1, b"raw bytes")
    if what == 4: k[0, 0, 0, 0] += 1
    if what == 5: torch.as_strided(v, (1,), (1,), v.storage_offset()).sub_(1)
    if what == 6: raise NotImplementedError("no such head size")
    if what == 7: return q[:, :, :, :1]
    if what == 8: return None
    if what == 9: return q.double()
    if what == 10: return q, torch.zeros(q.shape[:3], dtype=torch.float16)
    if what == 11: return q, q, q
    if what == 12: helper()
    if what == 13: sys.exit(3)
    if what == 14: os._exit(4)
    if what == 16: q[0, 0, 0][torch.full((2,), 1000, device=q.device)].sum().item()
    if what == 15:
        import ctypes
        ctypes.memset(v.data_ptr() - 8, 7, 4)
    return q.clone(), torch.zeros(q.shape[:3], device=q.device)

def helper():
    print("about to fail")
    raise ValueError("bad\\nsecond line")

def fresh(q, k, v):
    return torch.empty_like(q)

def plain(q, k, v):
    return sdpa(q, k, v)

def must(q, k, v, is_causal, attn_mask):
    assert is_causal is False and attn_mask is None
    return q

def bshd(q, k, v):
    out = sdpa(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    return out, torch.ones(q.shape[0], q.shape[2], q.shape[1])

swapped = Kernel(bshd, layout="bshd", lse_base="2")

def scaled(q, k, v, factor=1.0):
    return q * factor

configured = Kernel(scaled, configs={"one": {"factor": 1.0}, "two": {"factor": 2.0}})
"""


deterministic: Any = torch.utils.deterministic


def inputs(first: float = 0.0, layout: Layout = "contiguous", **changes: Any) -> Inputs:
    rng = np.random.default_rng(0)
    q, k, v = rng.integers(-3, 4, (3, 2, 2, 4, 8)).astype(float)
    q.flat[0] = first
    if layout == "expanded_batch":
        k[:], v[:] = k[:1], v[:1]
    if layout == "expanded_heads":
        k[:], v[:] = k[:, :1], v[:, :1]
    return Inputs("float32", q, k, v, layout=layout, **changes)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("kernels") / "cases.py"
    path.write_text(KERNELS)
    return str(path)


@pytest.fixture(scope="module")
def naughty(file: str) -> Iterator[Worker]:
    with Worker(f"{file}:naughty", timeout=1.0, warmup_timeout=60.0) as worker:
        assert worker.call(Call(inputs())).status == "ok"
        yield worker


def healthy(worker: Worker) -> bool:
    reply = worker.call(Call(inputs()))
    return reply.status == "ok" and np.array_equal(reply.outs[0], inputs().q)


def expected(given: Inputs) -> np.ndarray:
    q, k, v = (torch.from_numpy(x.astype(np.float32)) for x in (given.q, given.k, given.v))
    mask = None if given.mask is None else torch.from_numpy(given.mask)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=given.is_causal, scale=given.scale
    ).numpy()


@pytest.mark.parametrize("isolated", [True, False])
def test_results_in_every_layout_and_option(file: str, isolated: bool) -> None:
    with Worker(f"{file}:sdpa") if isolated else InProcess(f"{file}:sdpa") as worker:
        target = worker.start()
        assert target.options == ("scale", "is_causal", "attn_mask")
        assert worker.device == "cpu"
        seen = np.arange(16).reshape(4, 4) % 3 > 0
        cases = [inputs(layout=layout) for layout in LAYOUTS]
        cases += [inputs(is_causal=True), inputs(scale=-0.5), inputs(mask=seen)]
        cases += [inputs(passed=frozenset({"attn_mask", "is_causal", "scale"}))]
        for given in cases:
            reply = worker.call(Call(given, guard="nan", times=2))
            assert reply.status == "ok"
            assert reply.problem_with_output is None
            assert reply.modified == ()
            assert reply.lses == []
            assert reply.out_dtype == "float32"
            assert len(reply.outs) == 2
            assert reply.outs[0].dtype == np.float64
            assert np.allclose(reply.outs[0], expected(given), rtol=1e-5, atol=1e-6)
        reply = worker.call(Call(inputs(enable_gqa=True)))
        assert reply.status == "unsupported"
        assert "enable_gqa" in reply.message


def test_a_crash(naughty: Worker) -> None:
    reply = naughty.call(Call(inputs(1)))
    assert reply.status == "died"
    assert "SIGSEGV" in reply.message
    assert "cases.py" in reply.output  # faulthandler's stack
    assert healthy(naughty)


def test_an_exit(naughty: Worker) -> None:
    reply = naughty.call(Call(inputs(14)))
    assert reply.status == "died"
    assert "code 4" in reply.message
    reply = naughty.call(Call(inputs(13)))
    assert reply.status == "error"
    assert reply.exception == "SystemExit"
    assert healthy(naughty)


def test_a_hang(naughty: Worker) -> None:
    healthy(naughty)
    start = time.monotonic()
    reply = naughty.call(Call(inputs(2)))
    assert reply.status == "timeout"
    assert time.monotonic() - start < 5
    assert "cases.py" in reply.output
    assert "1 s" in reply.message
    # The new process repeats the last good call first, so that this one is timed as usual.
    reply = naughty.call(Call(inputs(2)))
    assert reply.status == "timeout"
    assert "1 s" in reply.message
    assert healthy(naughty)


def test_prints(naughty: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    for _ in range(5):
        assert naughty.call(Call(inputs(3))).status == "ok"
    assert capfd.readouterr() == ("", "")


def test_modified_inputs(naughty: Worker) -> None:
    assert naughty.call(Call(inputs(4))).modified == ("k",)
    assert naughty.call(Call(inputs(5))).modified == ("v",)
    assert naughty.call(Call(inputs(15))).modified == ("v",)  # written before its start
    assert naughty.call(Call(inputs())).modified == ()


OPTIONS = ("alibi_slopes", "sinks", "block_table", "cache_seqlens", "cu_seqlens_q", "cu_seqlens_k")


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("layout", ["contiguous", "padded"])
def test_modified_options(name: str, layout: Layout) -> None:
    """What a kernel is passed as an option is compared after the call too."""

    def careless(query: Any, key: Any, value: Any, *, what: Any = None, **given: Any) -> Any:
        if what is not None:
            given[what].add_(1)
        return query.clone()

    kernel = Kernel(
        careless, options=OPTIONS, configs={"clean": {}, "wrong": {"what": name}}
    )  # fmt: skip
    x = inputs(layout=layout)
    if name.startswith("cu_"):
        x = x.with_(q=x.q[:1], k=x.k[:1], v=x.v[:1], seqlens_q=(1, 3), seqlens_k=(4, 0))
    elif name in ("alibi_slopes", "sinks"):
        changes: Any = {name: np.array([0.5, 2.0])}
        x = x.with_(**changes)
    else:
        x = x.with_(seqlens_k=(3, 4), pages=Pages(2, 5, np.array([[0, 3], [4, 1]])))
    with InProcess(kernel) as runner:
        assert runner.call(Call(x, "clean", "nan")).modified == ()
        reply = runner.call(Call(x, "wrong"))
        assert (reply.status, reply.modified) == ("ok", (name,))


def test_refusals_and_errors(naughty: Worker) -> None:
    reply = naughty.call(Call(inputs(6)))
    assert (reply.status, reply.message) == ("unsupported", "no such head size")
    reply = naughty.call(Call(inputs(12)))
    assert (reply.status, reply.exception, reply.message) == ("error", "ValueError", "bad")
    assert "cases.py" in reply.traceback
    assert "worker.py" not in reply.traceback
    assert "in helper" in reply.traceback
    assert "about to fail" in reply.output


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        (7, "out has shape [2, 2, 4, 1]; it should be [2, 2, 4, 8]"),
        (8, "out is None, not a torch tensor"),
        (9, "out has dtype float64; it should be float32"),
        (10, "lse has dtype float16; it should be float32"),
        (11, "returned a tuple of 3; the contract is out, or (out, lse)"),
    ],
)
def test_bad_output(naughty: Worker, what: int, sentence: str) -> None:
    reply = naughty.call(Call(inputs(what)))
    assert reply.status == "ok"
    assert reply.problem_with_output == sentence
    assert reply.outs == []
    assert reply.lses == []


def test_fresh_memory(file: str) -> None:
    with InProcess(f"{file}:fresh") as worker:
        reply = worker.call(Call(inputs(), fresh_output_nan=True))
        assert np.isnan(reply.outs[0]).all()
        assert not torch.are_deterministic_algorithms_enabled()
        assert deterministic.fill_uninitialized_memory
        seen: list[bool] = []

        def spy(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            seen.append(deterministic.fill_uninitialized_memory)
            return q

    InProcess(spy).call(Call(inputs(), fresh_output_nan=False))
    assert seen == [False]


def test_layout_lse_base_required_and_configs(file: str) -> None:
    with InProcess(f"{file}:swapped") as worker:
        reply = worker.call(Call(inputs()))
        assert np.allclose(reply.outs[0], expected(inputs()), rtol=1e-5, atol=1e-6)
        assert np.allclose(reply.lses[0], np.log(2.0))
        assert reply.lse_dtype == "float32"
    with InProcess(f"{file}:must") as worker:
        assert worker.call(Call(inputs())).status == "ok"
    with InProcess(f"{file}:configured") as worker:
        assert worker.start().configs == ("one", "two")
        assert np.array_equal(worker.call(Call(inputs(), config="two")).outs[0], 2 * inputs().q)
        assert worker.call(Call(inputs(), config="six")).status == "unsupported"


def test_no_keys_and_growing_memory(file: str) -> None:
    with Worker(f"{file}:plain") as worker:
        x = np.zeros((1, 1, 3, 4))
        reply = worker.call(Call(Inputs("float32", x, x[:, :, :0], x[:, :, :0])))
        assert reply.status == "ok"
        assert not reply.outs[0].any()
        for length in (8, 4096, 8):
            x = np.ones((1, 2, length, 64))
            reply = worker.call(Call(Inputs("float16", x, x, x)))
            assert reply.status == "ok"
            assert np.array_equal(reply.outs[0], x)


def test_parent_computes_meanwhile(naughty: Worker) -> None:
    naughty.submit(Call(inputs()))
    with pytest.raises(RuntimeError):
        naughty.submit(Call(inputs()))
    assert naughty.result().status == "ok"
    with pytest.raises(RuntimeError):
        naughty.result()


def test_targets_that_do_not_load(tmp_path: Path, file: str) -> None:
    def refusal(spec: str, **given: Any) -> str:
        with Worker(spec, **given) as worker, pytest.raises(TargetError) as caught:
            worker.start()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "did you mean naughty" in refusal(f"{file}:naugty")
    (tmp_path / "dies.py").write_text("import os\nprint('bye', flush=True)\nos.abort()\n")
    text = refusal(f"{tmp_path}/dies.py:f")
    assert "SIGABRT" in text
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1000)\n")
    assert "not done after 3 s" in refusal(f"{tmp_path}/hangs.py:f", warmup_timeout=3.0)
    with pytest.raises(TargetError, match="is not there"):
        InProcess(f"{file}:plain", device="cuda:99").start()
    with pytest.raises(TargetError, match="not a device"):
        InProcess(f"{file}:plain", device="gpu").start()
    with pytest.raises(TargetError, match="cannot be called"):
        InProcess(3).start()  # type: ignore[arg-type]


def test_nothing_outlives_a_killed_parent(file: str, tmp_path: Path) -> None:
    # A script without a main guard, killed while its kernel hangs.
    script = tmp_path / "script.py"
    script.write_text(
        "import numpy as np, os, signal\n"
        "from flashcheck.inputs import Inputs\n"
        "from flashcheck.worker import Call, Worker\n"
        f"w = Worker({file + ':naughty'!r})\n"
        "w.start()\n"
        "x = np.full((1, 1, 1, 1), 2.0)\n"
        "w.submit(Call(Inputs('float32', x, x, x)))\n"
        "print(w._process._popen.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    out = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    pid = int(out.stdout)
    for _ in range(100):
        if not _running(pid):
            break
        time.sleep(0.05)
    assert not _running(pid)
    assert out.stderr == ""


def _running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return sys.platform != "linux"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda(file: str) -> None:
    with Worker(f"{file}:sdpa", device="cuda", timeout=30.0) as worker:
        assert worker.start().options
        assert worker.device == "cuda:0"
        for layout in LAYOUTS:
            given = inputs(layout=layout)
            if layout == "offset":  # torch 2.11's own attention: "misaligned address"
                continue
            reply = worker.call(Call(given, guard="nan", times=2))
            assert reply.status == "ok"
            assert reply.problem_with_output is None
            assert reply.modified == ()
            assert np.allclose(reply.outs[1], expected(given), rtol=1e-5, atol=1e-6)
    with Worker(f"{file}:naughty", device="cuda", timeout=30.0) as worker:
        assert worker.call(Call(inputs(0, "offset"), guard="nan")).status == "ok"
        assert worker.call(Call(inputs(4))).modified == ("k",)
        # A failed device assertion poisons the context: the next call gets a new process.
        reply = worker.call(Call(inputs(16)))
        assert reply.status == "error"
        assert healthy(worker)
