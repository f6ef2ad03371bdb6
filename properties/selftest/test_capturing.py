"""Calls of torch's attention are captured as they were made, and nothing else changes."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention as attention

import flashcheck
from flashcheck.capturing import Capture
from flashcheck.examples import Example, load
from flashcheck.replay import exit_code, render, replay

pytestmark = pytest.mark.cpu


def tensors(
    *lead: int, lq: int = 5, lk: int = 7, d: int = 4, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn((*lead, n, d), generator=noise).to(dtype) for n in (lq, lk, lk))
    return q, k, v


def one(found: Capture) -> Example:
    (path,) = found.paths
    return load(path)


def holds(array: Any, tensor: torch.Tensor) -> bool:
    """Whether a captured array [1, 1, ...] has a tensor's values."""
    return bool((torch.from_numpy(array[0, 0]) == tensor.detach().double()).all())


@contextlib.contextmanager
def skipping(why: str, folder: Path, max_bytes: int = 1000) -> Iterator[None]:
    with (
        pytest.warns(UserWarning, match="flashcheck.capture skipped 1 of 1 calls: 1 with " + why),
        flashcheck.capture(folder, max_bytes=max_bytes),
    ):
        yield
    assert not list(folder.iterdir())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_call_is_saved_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    q, k, v = tensors(1, 1, dtype=dtype)
    with flashcheck.capture(tmp_path) as found:
        out = functional.scaled_dot_product_attention(q, k, v, scale=0.25)
    assert torch.equal(out, attention(q, k, v, scale=0.25))
    example = one(found)
    assert f"torch.{example.dtype}" == str(dtype)
    assert holds(example.inputs.q, q[0, 0])
    assert holds(example.inputs.k, k[0, 0])
    assert holds(example.inputs.v, v[0, 0])
    assert (example.inputs.scale, example.inputs.is_causal) == (0.25, False)


@pytest.mark.parametrize("no_grad", [True, False])
def test_every_way_to_call_it_is_seen(tmp_path: Path, no_grad: bool) -> None:
    q, k, v = (t.requires_grad_() for t in tensors(1, 1))
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.ones(1, 3, 8)
    with flashcheck.capture(tmp_path) as found, torch.set_grad_enabled(not no_grad):
        attention(q, k, v)
        functional.scaled_dot_product_attention(query=q * 2, key=k, value=v)
        attention(q * 3, k, v, None, 0.0, True)
        layer(x, x, x, need_weights=False)
    assert (found.calls, len(found.paths)) == (4, 4)
    assert [load(path).inputs.is_causal for path in found.paths] == [False, False, True, False]
    if not no_grad:
        with flashcheck.capture(tmp_path):
            attention(q, k, v).sum().backward()
        assert q.grad is not None


def test_nested_captures_see_the_same_calls(tmp_path: Path) -> None:
    layer = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.ones(1, 3, 8)
    with flashcheck.capture(tmp_path / "a") as a, flashcheck.capture(tmp_path / "b") as b:
        layer(x, x, x, need_weights=False)
    assert [p.name for p in a.paths] == [p.name for p in b.paths]
    assert a.calls == b.calls == 1
    assert functional.scaled_dot_product_attention is attention


def test_a_head_comes_with_its_key_head_and_its_mask(tmp_path: Path) -> None:
    q, _, _ = tensors(3, 4)
    _, k, v = tensors(3, 2)
    mask = torch.arange(3 * 4 * 5 * 7).view(3, 4, 5, 7) % 3 > 0
    with flashcheck.capture(tmp_path, limit=200) as found:
        for _ in range(60):
            attention(q, k, v, attn_mask=mask, enable_gqa=True)
    assert len(found.paths) == 12, "60 calls do not come by all 12 heads"
    assert found.repeated == 48
    pairs = [(b, h) for b in range(3) for h in range(4)]
    for path in found.paths:
        x = load(path).inputs
        assert x.mask is not None
        ((b, h),) = (at for at in pairs if holds(x.q, q[at]))
        assert holds(x.k, k[b, h // 2])
        assert holds(x.v, v[b, h // 2])
        assert (x.mask[0, 0] == mask[b, h].numpy()).all()
        assert not x.enable_gqa
        assert f"head [{b}, {h}] of [3, 4]" in load(path).text


@pytest.mark.parametrize(
    ("shape", "rank"), [((7,), 4), ((5, 7), 2), ((1, 7), 2), ((2, 1, 7), 4), ((3, 1, 1, 7), 4)]
)
def test_masks_of_every_rank(tmp_path: Path, shape: tuple[int, ...], rank: int) -> None:
    q, k, v = tensors(3, 2)
    mask = torch.zeros(shape)
    mask[..., -1] = -torch.inf
    # The CPU's fused kernel refuses ranks 1 and 3.
    with sdpa_kernel(SDPBackend.MATH), flashcheck.capture(tmp_path) as found:
        attention(q, k, v, attn_mask=mask)
    x = one(found).inputs
    assert x.mask is not None
    assert x.mask.ndim == rank
    assert (x.visible.sum(-1) == 6).all()


@pytest.mark.parametrize("lead", [(), (2,), (2, 1, 3)])
def test_tensors_of_other_ranks(tmp_path: Path, lead: tuple[int, ...]) -> None:
    q, k, v = tensors(*lead)
    with flashcheck.capture(tmp_path) as found:
        attention(q, k, v)
    assert one(found).inputs.shape == (1, 1, 1, 5, 7, 4, 4)


def test_autocast_is_followed(tmp_path: Path) -> None:
    q, k, v = tensors(1, 1)
    mask = torch.full((5, 7), 0.1)
    with flashcheck.capture(tmp_path) as found, torch.autocast("cpu", torch.bfloat16):
        out = attention(q, k, v, attn_mask=mask)
    assert out.dtype == torch.bfloat16
    x = one(found).inputs
    assert (x.dtype, x.mask_dtype) == ("bfloat16", "bfloat16")
    assert holds(x.q, q[0, 0].bfloat16())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_what_no_example_holds_is_skipped_and_said(tmp_path: Path) -> None:
    q, k, v = tensors(1, 1)
    with skipping("dropout_p above 0", tmp_path):
        attention(q, k, v, dropout_p=0.5)
    with skipping("attn_mask together with is_causal", tmp_path):
        attention(q, k, v, attn_mask=torch.zeros(5, 7), is_causal=True)
    with skipping("NaN or infinity", tmp_path):
        attention(q * torch.inf, k, v)
    with skipping("a mask of NaN or huge numbers", tmp_path):
        attention(q, k, v, attn_mask=torch.full((5, 7), torch.finfo().min))
    with skipping("a CausalBias for a tensor", tmp_path):
        attention(q, k, v, attn_mask=causal_lower_right(5, 7))
    nested = torch.nested.nested_tensor([q[0], k[0]])
    with skipping("a nested tensor for a tensor", tmp_path):
        attention(nested, nested, nested)
    with skipping("an empty batch", tmp_path):
        attention(*tensors(0, 1))
    with skipping("what no example holds .*len_q is 0", tmp_path):
        attention(*tensors(1, 1, lq=0))
    with skipping("tensors that have no values", tmp_path):
        attention(q.to("meta"), k.to("meta"), v.to("meta"))
    with sdpa_kernel(SDPBackend.MATH), skipping("tensors that have no values", tmp_path):
        torch.vmap(attention)(*tensors(3, 1, 1))


def test_limits(tmp_path: Path) -> None:
    q, k, v = tensors(1, 1)
    size = 4 * (q.numel() + k.numel() + v.numel())
    with flashcheck.capture(tmp_path / "a", limit=2) as found:
        for factor in range(5):
            attention(q * factor, k, v)
    assert (found.calls, len(found.paths), found.beyond) == (5, 2, 3)
    assert str(found) == f"2 examples of 5 calls in {tmp_path / 'a'} (3 beyond the limit)"
    with skipping("more tensors than max_bytes leaves room for", tmp_path / "b", size - 1):
        attention(q, k, v)
    with flashcheck.capture(tmp_path / "c", max_bytes=size) as found:
        attention(q, k, v)
    assert len(found.paths) == 1
    for limits in ({"limit": 0}, {"max_bytes": 0}):
        with (
            pytest.raises(ValueError, match="must be at least 1"),
            flashcheck.capture(tmp_path, **limits),
        ):
            pass


def test_what_was_captured_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.warns(UserWarning, match="saw no call of scaled_dot_product_attention"),
        flashcheck.capture("empty"),
    ):
        pass
    assert capsys.readouterr().err == "flashcheck.capture: 0 examples of 0 calls in empty\n"
    with flashcheck.capture():
        attention(*tensors(1, 1))
    folder = ".flashcheck/examples"
    assert capsys.readouterr().err == f"flashcheck.capture: 1 example of 1 call in {folder}\n"


def test_an_error_of_the_model_is_its_own(tmp_path: Path) -> None:
    q, k, v = tensors(1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError), flashcheck.capture(tmp_path) as found:
            attention(q, k[..., :3], v)
    assert found.calls == 0


WRONG = """
from torch.nn.functional import scaled_dot_product_attention
def attention(query, key, value):
    return scaled_dot_product_attention(query, key[:, :, :-1], value[:, :, :-1])
def refusing(query, key, value):
    raise NotImplementedError("not today")
"""


def test_replay_says_whether_it_holds(tmp_path: Path) -> None:
    with flashcheck.capture(tmp_path) as found:
        attention(*tensors(2, 2))
    (held,) = replay(found.paths, kernel="numpy_online", isolate=False)
    assert (held.status, held.message, exit_code([held])) == ("HOLDS", "", 0)
    text = render([held], width=200)
    assert "= HOLDS" in text
    assert "recorded" not in text
    assert text.splitlines()[-1].split() == ["1", "holds", "exit", "0"]
    (torch_too,) = replay(found.paths, isolate=False)
    assert torch_too.status == "HOLDS"
    kernel = tmp_path / "wrong.py"
    kernel.write_text(WRONG)
    (failed,) = replay(found.paths, kernel=f"{kernel}:attention", isolate=False)
    assert (failed.status, exit_code([failed])) == ("FAILED", 1)
    assert failed.check is not None
    assert failed.check.message in failed.message
    assert "PASS → VIOLATION" in render([failed], width=200)
    (refused,) = replay(found.paths, kernel=f"{kernel}:refusing", isolate=False)
    assert refused.status == "ERROR"
    shown = one(found).render()
    for said in ("captured  float32", "Call 0, head [0, 0] of [2, 2]", "5 queries, 7 keys"):
        assert said in shown
    q, k, v = tensors(1, 1)
    with flashcheck.capture(tmp_path / "vacuous") as found:
        attention(q * 1e18, k * 1e18, v)
    (nothing,) = replay(found.paths, kernel="numpy_online", isolate=False)
    assert (nothing.status, exit_code([nothing])) == ("HOLDS", 0)
    assert "vacuous" in render([nothing], width=200)
