"""A recipe means the same bits everywhere, round-trips through JSON and reads as a sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flashcheck.fills import NOISES, PATTERNS, Fill
from flashcheck.formats import DTYPES, FORMATS
from flashcheck.masks import HIDES, Mask
from flashcheck.problem import FORMAT_VERSION, Problem, ProblemError, dumps
from flashcheck.sentence import describe
from flashcheck.strategies import Space, problems

NORMAL = Fill(noise="normal", spread=1.0)
TYPES: dict[str, Any] = {
    "float64": np.float64, "float32": np.float32, "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}  # fmt: skip

PINNED: dict[str, Problem] = {
    "plain": Problem(),
    "normal": Problem(
        batch=2, heads=4, kv_heads=2, len_q=5, len_k=33, dim=16, dim_v=3,
        q=NORMAL, k=NORMAL, v=NORMAL, seed=7,
    ),
    "spike, outliers, wide": Problem(
        dtype="float16", heads=2, kv_heads=2, len_q=3, len_k=17, dim=8, dim_v=8, seed=65535,
        q=Fill("spike", level=3.0, base=-1.0, at=-1, noise="outliers", spread=0.5),
        k=Fill("spike", level=9.5, at=16, noise="wide", spread=4.0),
        v=Fill(noise="wide", spread=10.0),
    ),
    "step, positive, negative": Problem(
        dtype="bfloat16", len_q=4, len_k=65, dim=4, dim_v=5, seed=1,
        q=Fill("step", level=2.0, base=0.25, at=2, noise="positive", spread=0.75),
        k=Fill("step", level=-3.0, at=-32, noise="negative", spread=1.5),
        v=Fill("step", level=1.0, at=64, noise="signs", spread=0.125),
    ),
    "stairs, special": Problem(
        dtype="float16", len_q=7, len_k=40, dim=3, dim_v=2, seed=2,
        q=Fill("stairs", level=0.1, base=-0.3, period=2, noise="special", spread=1.0),
        k=Fill(noise="special", spread=2.0**-8),
        v=Fill("stairs", level=1.0, period=16, noise="special", spread=0.5),
    ),
    "cycle, alternate, float64": Problem(
        dtype="float64", len_q=9, len_k=21, dim=5, dim_v=5, seed=3,
        q=Fill("alternate", level=1.7, noise="normal", spread=0.3),
        k=Fill("cycle", level=2.5, base=-0.7, period=5, noise="normal", spread=1e-3),
        v=Fill("alternate", level=64.0, noise="signs", spread=1.0),
    ),
    "specials of bfloat16": Problem(
        dtype="bfloat16", len_k=64, dim=8, dim_v=8, seed=4,
        k=Fill(noise="special", spread=2.0**-70), v=Fill(noise="special", spread=2.0**-10),
    ),
    "clipped, planted": Problem(
        dtype="float16", batch=2, heads=2, kv_heads=1, len_q=2, len_k=4, dim=2, dim_v=2, seed=5,
        q=Fill(level=1e6, plants=(((1, 1, -1, 0), -2.5), ((0, 0, 0, 1), 1e-8))),
        k=Fill(noise="outliers", spread=3e4),
        v=Fill(plants=(((0, 0, 3, 1), 1.0), ((9, 0, 0, 0), 5.0))),
    ),
    "masks: random, bool": Problem(
        batch=2, heads=3, kv_heads=3, len_q=6, len_k=19, dim=1, dim_v=1, seed=6,
        v=NORMAL, mask=Mask(hides="random", per_batch=True, per_head=True),
    ),
    "tail, additive of query": Problem(
        dtype="bfloat16", batch=2, heads=2, kv_heads=2, len_q=3, len_k=18, seed=8, v=NORMAL,
        mask=Mask(
            kind="additive", hides="tail", amount=3, dtype="query", per_batch=True, per_head=True,
            bias=Fill(noise="normal", spread=8.0),
        ),
    ),
    "window, bias, rank 2": Problem(
        dtype="float16", len_q=8, len_k=33, dim=2, dim_v=2, seed=9, q=NORMAL, scale=-0.25,
        mask=Mask(kind="additive", hides="window", amount=5, rank=2,
                  bias=Fill("stairs", level=-0.1, base=3.0)),
    ),
    "masks: block, rank 3": Problem(
        batch=1, heads=2, kv_heads=1, len_q=2, len_k=50, seed=10, v=NORMAL,
        mask=Mask(hides="block", amount=1, rank=3, per_head=True),
    ),
    "masks: rank 1": Problem(
        len_q=3, len_k=5, seed=10, v=NORMAL, mask=Mask(hides="head", amount=2, rank=1)
    ),
    "expanded, causal": Problem(
        batch=3, heads=4, kv_heads=4, len_q=4, len_k=4, dim=2, dim_v=2, seed=11, is_causal=True,
        q=NORMAL, k=NORMAL, v=NORMAL, layout="expanded_batch",
    ),
    "expanded heads": Problem(
        batch=2, heads=4, kv_heads=4, len_q=1, len_k=3, dim=2, dim_v=2, seed=12,
        k=NORMAL, v=replace(NORMAL, plants=(((0, 0, 1, 1), 8.0),)), layout="expanded_heads",
    ),
    "no keys": Problem(len_q=2, len_k=0, dim=2, dim_v=2, q=NORMAL, mask=Mask(hides="row")),
}  # fmt: skip
"""Problems that between them use every pattern, noise, kind of mask and dtype."""

DIGESTS: dict[str, str] = {
    "plain": "0eb595cc68f6217f3e43344acc8ad675c551d30eb715e0ce01bd7106e88c17d9",
    "normal": "5e3c5fb3a2c4eff03a46952062158b1dab5247e71dabba3c5eb88c76ed0b43e7",
    "spike, outliers, wide": "38d1e89ad07f270bc4332c52cfbcf057d030cd825ad07de2163dbecac1e988ec",
    "step, positive, negative": "a6bbf9feb36ff5ae98cc544f3dcd741b692f8e6fe5add4bc961f50b279d60cb3",
    "stairs, special": "014953d438475720c8729c3c6c06915527267ecf2358e8266212586ea7d3f524",
    "cycle, alternate, float64": "be1e5cb0aa196108f32484ac7c12a0fc90ffaaa7c45f7c9f50135ebf39853ea9",
    "specials of bfloat16": "97ea15119963b4f1565e228f94b88367c56b9616ab6af8a5779dff067ac52ce9",
    "clipped, planted": "81f1310b0936c1d8dc09d85b3a0c656eae1621b9f5cf6145bb8255e11226cf05",
    "masks: random, bool": "6af6f687e67ee83c66b0d3a34bb90c9a1c4cd6fe5f5c3167c9cd6964dea0e512",
    "tail, additive of query": "c054e2851b7c83f4ff1995aa1c194d12125f68d70387fd069e2bc6ba58f7e7cd",
    "window, bias, rank 2": "c8a2366625d301b26435948a1d37b9e8c44d7e90bf98da5a54c37bb59888b7b7",
    "masks: block, rank 3": "5802c76e1f8a2ae66d7c7abd23c966f42794e03194072f52ebe09f67a262c13f",
    "masks: rank 1": "27dbba81a7e09055ee8d9516f14defc5266002d06f4daa4b77cb1da582e1a2ea",
    "expanded, causal": "bc55b1e9bf2afdeb03c470366da4227adab8e0f0ebcd70738c71644062102e96",
    "expanded heads": "00448ea422b79ffdd21569d93ec0221c781dff566f88a38ba6c76b138a8c7644",
    "no keys": "e3bece208ab5362ccab0d815aea96109fc70a72938ba07a08976211d928df061",
}


def digest(p: Problem) -> str:
    """sha256 of the shapes and little-endian float64 bytes of q, k, v and the mask."""
    x = p.inputs()
    total = hashlib.sha256()
    for tensor in (x.q, x.k, x.v, x.mask):
        if tensor is None:
            total.update(b"none")
            continue
        plain = np.ascontiguousarray(tensor, np.uint8 if tensor.dtype == bool else "<f8")
        total.update(struct.pack(f"<B{plain.ndim}q", plain.ndim, *plain.shape))
        total.update(plain.tobytes())
    return total.hexdigest()


@pytest.mark.parametrize("name", PINNED)
def test_a_recipe_gives_the_same_bits_for_ever(name: str) -> None:
    # A change here means that saved examples no longer replay: raise FORMAT_VERSION.
    assert digest(PINNED[name]) == DIGESTS[name]


def test_the_pinned_recipes_use_everything() -> None:
    pinned = PINNED.values()
    fills = [f for p in pinned for f in (p.q, p.k, p.v)]
    fills += [p.mask.bias for p in pinned if p.mask is not None]
    masks = [p.mask for p in pinned if p.mask is not None]
    assert {f.pattern for f in fills} == set(PATTERNS)
    assert {f.noise for f in fills} == set(NOISES)
    assert {m.kind for m in masks} == {"bool", "additive"}
    assert {m.rank for m in masks} == {1, 2, 3, 4}
    assert {p.dtype for p in pinned} == set(DTYPES)
    assert {"expanded_batch", "expanded_heads"} <= {p.layout for p in pinned}


@pytest.mark.parametrize("name", PINNED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_is_a_number_of_the_dtype(name: str, dtype: str) -> None:
    p = replace(PINNED[name], dtype=dtype)
    x = p.inputs()
    for tensor in (x.q, x.k, x.v):
        assert tensor.dtype == np.float64
        _assert_exact(tensor, dtype)
    if x.mask is not None and x.mask.dtype != bool:
        _assert_exact(np.asarray(x.mask[x.mask != -np.inf], np.float64), x.mask_dtype)


def _assert_exact(tensor: NDArray[np.float64], dtype: str) -> None:
    assert np.isfinite(tensor).all()
    there = tensor.astype(TYPES[dtype]).astype(np.float64)
    np.testing.assert_array_equal(there.view(np.uint64), tensor.view(np.uint64))
    np.testing.assert_array_equal(FORMATS[dtype].round(tensor), tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_that_of_ml_dtypes_and_numpy(dtype: str) -> None:
    bits = np.random.Generator(np.random.PCG64(0)).integers(0, 1 << 63, 20_000, np.uint64)
    exponents = (bits >> np.uint64(40)).astype(np.int64) % 300 - 150
    x = ((bits % np.uint64(1 << 40)).astype(np.float64) + 1) * np.exp2(exponents)
    with np.errstate(over="ignore"):
        expected = x.astype(TYPES[dtype]).astype(np.float64)
    np.testing.assert_array_equal(FORMATS[dtype].round(x), expected)
    np.testing.assert_array_equal(FORMATS[dtype].round(-x), -expected)


def test_minus_zero_is_an_input_of_its_own() -> None:
    plus, minus = Problem(v=Fill(level=0.0)), Problem(v=Fill(level=-0.0))
    assert plus.id != minus.id
    for p, negative in ((plus, False), (minus, True), (plus, False)):
        assert bool(np.signbit(p.inputs().v).all()) is negative
    back = Problem.from_dict(json.loads(dumps(minus)))
    assert bool(np.signbit(back.v.level))


# -- shrinking a length -------------------------------------------------------------------

_POSITIONS = [
    Fill(pattern, level=1.5, base=0.25, at=3, period=3, noise=noise, spread=0.5)
    for pattern, noise in zip(
        (*PATTERNS, PATTERNS[0], PATTERNS[0]), NOISES, strict=True
    )
]  # fmt: skip


@pytest.mark.parametrize("fill", _POSITIONS, ids=lambda f: f"{f.pattern} {f.noise}")
def test_a_smaller_shape_leaves_the_elements_that_remain(fill: Fill) -> None:
    large = Problem(
        batch=3, heads=4, kv_heads=4, len_q=20, len_k=40, dim=8, dim_v=6, seed=99,
        q=fill, k=fill, v=fill,
    )  # fmt: skip
    x = large.inputs()
    changes: list[dict[str, int]] = [
        {"len_k": 9}, {"len_q": 7}, {"dim": 3}, {"dim_v": 2}, {"batch": 1},
        {"heads": 2, "kv_heads": 2}, {"batch": 2, "len_k": 33, "len_q": 5, "dim": 7},
    ]  # fmt: skip
    for change in changes:
        small = replace(large, **change).inputs()  # type: ignore[arg-type]
        for before, after in ((x.q, small.q), (x.k, small.k), (x.v, small.v)):
            kept = before[tuple(slice(n) for n in after.shape)]
            np.testing.assert_array_equal(
                np.ascontiguousarray(kept).view(np.uint64),
                np.ascontiguousarray(after).view(np.uint64),
            )


@pytest.mark.parametrize("hides", [h for h in HIDES if h not in ("tail", "row")])
def test_a_shorter_mask_hides_the_same_keys(hides: Any) -> None:
    large = Problem(len_q=9, len_k=40, mask=Mask(hides=hides, amount=2), seed=3)
    mask, shorter = large.inputs().mask, replace(large, len_q=4, len_k=35).inputs().mask
    assert mask is not None
    assert shorter is not None
    np.testing.assert_array_equal(mask[:, :, :4, :35], shorter)


def test_the_seed_and_the_tensor_decide_the_noise() -> None:
    p = Problem(len_q=4, len_k=4, dim=4, dim_v=4, q=NORMAL, k=NORMAL, v=NORMAL, seed=5)
    x = p.inputs()
    assert len({x.q.tobytes(), x.k.tobytes(), x.v.tobytes()}) == 3
    digests = {digest(replace(p, seed=seed)) for seed in range(50)}
    assert len(digests) == 50


def test_normal_noise_is_near_normal() -> None:
    p = Problem(len_k=4000, dim=16, k=NORMAL)
    k = p.inputs().k
    assert abs(k.mean()) < 0.02
    assert abs(k.std() - 1) < 0.02
    assert 2.9 < np.abs(k).max() < 3.5


# -- JSON ---------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, database=None, derandomize=True,
          suppress_health_check=list(HealthCheck))  # fmt: skip
@given(dtype=st.sampled_from(DTYPES), data=st.data())
def test_json_round_trip(dtype: str, data: st.DataObject) -> None:
    p = data.draw(problems(Space(dtype=dtype)))
    text = dumps(p)
    back = Problem.from_dict(json.loads(text))
    assert repr(back) == repr(p)
    assert dumps(back) == text
    assert back.id == p.id
    assert len(p.id) == 10
    assert len(text) < 2000
    assert "\n" not in describe(p)
    assert str(p) == describe(p)


@pytest.mark.parametrize("name", PINNED)
def test_pinned_recipes_round_trip(name: str) -> None:
    p = PINNED[name]
    back = Problem.from_dict(json.loads(dumps(p)))
    assert repr(back) == repr(p)
    assert digest(back) == digest(p)


def test_defaults_are_left_out() -> None:
    assert Problem().to_dict() == {"format_version": FORMAT_VERSION}
    assert Problem.from_dict({"format_version": FORMAT_VERSION}) == Problem()


def _json(**fields: Any) -> dict[str, Any]:
    return {"format_version": FORMAT_VERSION, **fields}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "JSON object"),
        ({}, "format_version None"),
        ({"format_version": 2}, "format_version 2"),
        ({"format_version": "1"}, "format_version '1'"),
        (_json(colour="red"), "colour"),
        (_json(q={"lvel": 1.0}), "problem.q has the unknown field 'lvel'"),
        (_json(mask={"hide": "tail"}), "problem.mask has the unknown field 'hide'"),
        (_json(mask={"bias": {"x": 1}}), "problem.mask.bias has the unknown field 'x'"),
        (_json(q=1), "problem.q must be"),
        (_json(mask="tail"), "problem.mask must be"),
        (_json(q={"pattern": "spiral"}), "problem.q.pattern is 'spiral'"),
        (_json(q={"noise": "pink"}), "problem.q.noise is 'pink'"),
        (_json(q={"level": "1"}), "problem.q.level must be a number"),
        (_json(q={"level": True}), "problem.q.level must be a number"),
        (_json(q={"period": 1.5}), "problem.q.period must be a whole number"),
        (_json(q={"plants": [[1, 2]]}), "problem.q.plants holds"),
        (_json(len_q=1.5), "problem.len_q must be a whole number"),
        (_json(len_q=True), "problem.len_q must be a whole number"),
        (_json(is_causal=1), "problem.is_causal must be true or false"),
        (_json(scale="1"), "problem.scale must be a number"),
        (_json(layout="fancy"), "problem.layout is 'fancy'"),
        (_json(mask={"hides": "most"}), "problem.mask.hides is 'most'"),
        (_json(mask={"kind": "float"}), "problem.mask.kind is 'float'"),
        (_json(dtype="int8"), "dtype 'int8'"),
        (_json(dtype=3), "problem.dtype must be a string"),
        (_json(scores=3), "problem.scores must be a string"),
        (_json(batch=0), "batch is 0"),
        (_json(len_k=-1), "len_k is -1"),
        (_json(heads=3, kv_heads=2), "heads (3) is not a multiple of kv_heads (2)"),
        (_json(q={"period": 0}), "period"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(data: object, said: str) -> None:
    with pytest.raises(ProblemError) as refused:
        Problem.from_dict(data)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "data",
    [
        _json(q={"plants": 5}),
        _json(mask={"dtype": "float99"}),
        _json(mask={"rank": 7}),
        _json(mask={"rank": 0}),
        _json(mask={"amount": -1}),
        _json(scale=float("nan")),
        _json(q={"level": float("inf")}),
        _json(q={"noise": ["normal"]}),
        _json(q={"noise": "wide", "spread": -1.0}),
        _json(seed=-1),
        _json(mask={"bias": {"period": 0}}),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused(data: object) -> None:
    with pytest.raises(ProblemError):
        Problem.from_dict(data)


# -- the sentence -------------------------------------------------------------------------


def _said(p: Problem) -> str:
    text = describe(p)
    assert "\n" not in text
    return text


def test_the_plainest_problem_reads_plainly() -> None:
    assert _said(Problem()) == (
        "1 query, 1 key, head size 1, float32, no mask; q = 0 everywhere; k = 0 everywhere; "
        "v = 0 everywhere"
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"batch": 3}, "batch 3"),
        ({"heads": 2, "kv_heads": 2}, "2 heads"),
        ({"heads": 6, "kv_heads": 2}, "6 query heads on 2 key heads"),
        ({"heads": 4}, "4 query heads on 1 key head,"),
        ({"len_q": 7}, "7 queries"),
        ({"len_k": 0}, "0 keys"),
        ({"dim": 64, "dim_v": 32}, "head size 64 (v 32)"),
        ({"scale": 0.0}, "scale 0"),
        ({"scale": -0.25}, "scale -0.25"),
        ({"is_causal": True}, "causal"),
        ({"layout": "expanded_heads"}, "expanded heads layout"),
        ({"mask": Mask()}, "boolean mask of rank 4 (nothing hidden)"),
        ({"mask": Mask(hides="tail", amount=1)}, "last 1 key hidden"),
        (
            {"mask": Mask(hides="head", per_head=True)},
            "one for each head (first 0 keys hidden, one more in each further head)",
        ),
        ({"mask": Mask(hides="row", amount=4)}, "query 4 sees no key"),
        ({"mask": Mask(hides="block", amount=1)}, "keys 16 to 31 hidden"),
        ({"mask": Mask(kind="additive", dtype="query", rank=2)}, "additive query mask of rank 2"),
        ({"mask": Mask(kind="additive", bias=NORMAL)}, "bias 0 everywhere + normal noise x 1"),
        ({"q": Fill("spike", level=3.0, at=-1)}, "q = 0 except 3 at the last query"),
        ({"k": Fill("spike", level=3.0, base=1.0, at=5)}, "k = 1 except 3 at key 5"),
        ({"k": Fill("step", level=3.0, at=5)}, "k = 0, then 3 from key 5 on"),
        ({"v": Fill("stairs", level=2.0, period=16)}, "v = 0, 2, 4, ... a step every 16 keys"),
        ({"v": Fill("cycle", level=2.0, period=3)}, "v = 0 except 2 every 3 keys from 0"),
        ({"v": Fill("alternate", level=2.0)}, "v = 2 and -2 in turn"),
        ({"v": Fill(noise="wide", spread=10.0)}, "wide noise over 2^+-10"),
        ({"v": Fill(plants=(((0, 1, 2, 3), 5.0),))}, "5 at [0, 1, 2, 3]"),
    ],
    ids=str,
)
def test_the_sentence_names_what_is_not_plain(change: dict[str, Any], said: str) -> None:
    plain = Problem()
    p = replace(plain, **change)
    assert said in _said(p)
    assert said not in _said(plain)


def test_every_field_that_changes_bits_is_in_the_sentence() -> None:
    """But the seed, which is in the JSON: it would mean nothing to a reader."""
    base = Problem(
        batch=2, heads=2, kv_heads=2, len_q=40, len_k=40, dim=4, dim_v=4,
        q=NORMAL, k=NORMAL, v=NORMAL, mask=Mask(kind="additive", hides="tail", amount=2),
    )  # fmt: skip
    other: dict[str, Any] = {
        "per_batch": True, "per_head": True, "amount": 3, "hides": "head", "kind": "bool",
        "dtype": "query", "rank": 2, "bias": NORMAL, "per_query": False, "per_key": False,
    }  # fmt: skip
    assert base.mask is not None
    assert set(other) == {f.name for f in dataclasses.fields(Mask)}
    for name, value in other.items():
        changed = replace(base, mask=replace(base.mask, **{name: value}))
        assert _said(changed) != _said(base), name


if __name__ == "__main__":
    for _name, _problem in PINNED.items():
        sys.stdout.write(f'    "{_name}": "{digest(_problem)}",\n')
