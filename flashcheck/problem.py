"""Problem: the frozen recipe of one attention call, and its JSON."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
import typing
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flashcheck import sentence, tensors
from flashcheck.fills import NOISES, PATTERNS, Fill, shuffled
from flashcheck.formats import FORMATS, Array
from flashcheck.inputs import LAYOUTS, Inputs, Layout, Pages
from flashcheck.masks import HIDES, Mask

if TYPE_CHECKING:
    import torch

DescalePer = Literal["tensor", "head", "block"]
Longest = Literal["", "q", "k", "qk"]

FORMAT_VERSION = 1
"""Version of the JSON of a problem. Rises when an old problem would mean other bits."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "pattern": PATTERNS,
    "noise": NOISES,
    "hides": HIDES,
    "kind": ("bool", "additive"),
    "layout": LAYOUTS,
    "descale_per": typing.get_args(DescalePer),
    "names_longest": typing.get_args(Longest),
}


class ProblemError(ValueError):
    """A recipe that cannot be built: names the field and what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A recipe: everything needed to rebuild one call's tensors bit for bit anywhere.

    q is [batch, heads, len_q, dim], k is [batch, kv_heads, len_k, dim], v is
    [batch, kv_heads, len_k, dim_v]. The fills of alibi_slopes and sinks make one float32 number
    for each of the `heads`, along their length. window, softcap, num_splits, seqlens_q, seqlens_k
    and longest are as in `Inputs`, () for none; page, where not 0, is the keys of a page, len_k
    a multiple of it, `spare` the pages that no sequence uses, and `shared` how many of its first
    pages each sequence has in common with the first, as a cache of prefixes does. `scores` and
    `values` name the families that the fills were drawn from; they label reports and change no bit.
    `names_longest` says which of max_seqlen_q and max_seqlen_k `options` has: those that the kernel
    names for which the problem was drawn; flashcheck's own calls pass what a kernel names.
    """

    dtype: str = "float32"
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    len_q: int = 1
    len_k: int = 1
    dim: int = 1
    dim_v: int = 1
    q: Fill = Fill()
    k: Fill = Fill()
    v: Fill = Fill()
    seed: int = 0
    scale: float | None = None
    is_causal: bool = False
    mask: Mask | None = None
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi_slopes: Fill | None = None
    sinks: Fill | None = None
    num_splits: int = 1
    seqlens_q: tuple[int, ...] = ()
    seqlens_k: tuple[int, ...] = ()
    longest: tuple[int, int] = (0, 0)
    names_longest: Longest = ""
    page: int = 0
    spare: int = 0
    shared: int = 0
    q_descale: Fill | None = None
    k_descale: Fill | None = None
    v_descale: Fill | None = None
    descale_per: DescalePer = "head"
    descale_block: tuple[int, int] = (1, 1)
    layout: Layout = "contiguous"
    scores: str = "equal"
    values: str = "zero"

    def __post_init__(self) -> None:
        if self.dtype not in FORMATS:
            raise ProblemError(f"dtype {self.dtype!r} is not one of {', '.join(FORMATS)}")
        for name in ("batch", "heads", "kv_heads", "len_q", "dim", "dim_v"):
            if getattr(self, name) < 1:
                raise ProblemError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.len_k < 0:
            raise ProblemError(f"len_k is {self.len_k}; it must be at least 0")
        if self.heads % self.kv_heads:
            raise ProblemError(
                f"heads ({self.heads}) is not a multiple of kv_heads ({self.kv_heads})"
            )
        if self.seed < 0:
            raise ProblemError(f"seed is {self.seed}; it must be at least 0")
        if self.scale is not None and not math.isfinite(self.scale):
            raise ProblemError(f"scale is {self.scale}; it must be finite")
        if len(self.window) != 2 or min(self.window) < -1:
            raise ProblemError(f"window is {self.window}; it must be two numbers, each -1 or more")
        if len(self.descale_block) != 2 or min(self.descale_block) < 1:
            raise ProblemError(
                f"descale_block is {self.descale_block}; it must be 1 or more, twice"
            )
        if len(self.longest) != 2:
            raise ProblemError(f"longest is {self.longest}; it must be two numbers")
        if not 0 <= self.softcap < math.inf:
            raise ProblemError(f"softcap is {self.softcap}; it must be finite, and 0 or more")
        if self.num_splits < 1:
            raise ProblemError(f"num_splits is {self.num_splits}; it must be at least 1")
        self._check_sequences()
        fills = (self.q, self.k, self.v, self.alibi_slopes, self.sinks)
        for fill in (*fills, self.q_descale, self.k_descale, self.v_descale):
            if fill is not None:
                _check_fill(fill)
        if self.mask is not None:
            _check_mask(self.mask)

    def _check_sequences(self) -> None:
        lengths = (self.seqlens_q, self.seqlens_k, self.longest)
        if min(self.page, self.spare, self.shared, *(n for some in lengths for n in some)) < 0:
            raise ProblemError(
                "page, spare, shared, longest and the lengths of sequences are 0 or more"
            )
        if self.page and (self.len_k % self.page or len(self.seqlens_k) != self.batch):
            raise ProblemError(
                f"a cache has one of seqlens_k for each of the batch ({self.batch}), and "
                f"len_k ({self.len_k}) is a multiple of its page ({self.page})"
            )
        if self.page and max(self.seqlens_k) > self.len_k:
            raise ProblemError(f"seqlens_k is {self.seqlens_k}; len_k is {self.len_k}")
        if self.packed:
            sums = sum(self.seqlens_q), sum(self.seqlens_k)
            if len(self.seqlens_q) != len(self.seqlens_k) or sums != (self.len_q, self.len_k):
                raise ProblemError(
                    f"the sequences have {sums} queries and keys; len_q and len_k are "
                    f"{self.len_q, self.len_k}"
                )
            if self.batch != 1:
                raise ProblemError(f"a packed batch has batch = 1, not {self.batch}")
        if (self.packed or self.page) and self.mask is not None:
            raise ProblemError("a mask and sequences of their own lengths exclude each other")

    @property
    def placed(self) -> bool:
        """Whether a window or ALiBi makes scores depend on where queries and keys stand."""
        return self.window != (-1, -1) or self.alibi_slopes is not None

    @property
    def packed(self) -> bool:
        """Whether sequences lie one after another, with cu_seqlens."""
        return bool(self.seqlens_q) or (bool(self.seqlens_k) and not self.page)

    @property
    def enable_gqa(self) -> bool:
        return self.heads != self.kv_heads

    @property
    def id(self) -> str:
        """A content hash of the recipe."""
        digest = hashlib.sha256(dumps(self).encode()).digest()
        return base64.b32encode(digest)[:10].decode().lower()

    def inputs(self) -> Inputs:
        """The concrete tensors. The last few are cached; do not write to them."""
        # 0.0 and -0.0 compare equal and are different inputs: equality is no key.
        return _inputs(self, repr(self))

    def tensors(
        self, device: str | torch.device = "cpu"
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """query, key and value as a kernel gets them: new torch tensors in this layout.

        >>> from torch.nn.functional import scaled_dot_product_attention
        >>> p = Problem(len_q=2, len_k=3, is_causal=True)
        >>> scaled_dot_product_attention(*p.tensors(), **p.options()).shape
        torch.Size([1, 1, 2, 1])
        """
        placed = tensors.place(self.inputs(), device)
        return placed["q"], placed["k"], placed["v"]

    def options(self, device: str | torch.device = "cpu") -> dict[str, Any]:
        """The keyword arguments that go with `tensors`: those that change something.

        max_seqlen_q and max_seqlen_k are there where `names_longest` says so, as it does in
        problems of the space of a kernel that names them.
        attn_mask, where there is one, is a new tensor on `device`.
        """
        given = tensors.keywords(self.inputs(), device)
        for of in {"q", "k"} - {*self.names_longest}:
            given.pop(f"max_seqlen_{of}", None)
        if self.mask is not None:
            given["attn_mask"] = tensors.place(self.inputs(), device)["mask"]
        return given

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without the fields that have their default."""
        return {"format_version": FORMAT_VERSION, **_plain(self)}

    @staticmethod
    def from_dict(data: object) -> Problem:
        """The reverse of `to_dict`.

        Raises ProblemError for another format version, an unknown field or a wrong type.
        """
        if not isinstance(data, dict):
            raise ProblemError("a problem is a JSON object")
        fields = dict(data)
        version = fields.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise ProblemError(
                f"this problem has format_version {version!r}; "
                f"this flashcheck reads {FORMAT_VERSION}"
            )
        return typing.cast(Problem, _build(Problem, fields, "problem"))

    def __str__(self) -> str:
        return sentence.describe(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis prints in a failing example: a line that makes the problem again."""
        printer.text(f"Problem.from_dict({self.to_dict()})")


def dumps(problem: Problem) -> str:
    """Canonical JSON: sorted keys, shortest floats that round-trip."""
    return json.dumps(problem.to_dict(), sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=8)
def _inputs(p: Problem, _: str) -> Inputs:
    fmt = FORMATS[p.dtype]
    repeat = {
        "same_batch": p.layout == "expanded_batch",
        "same_head": p.layout == "expanded_heads",
    }
    mask = None
    mask_dtype = "bool"
    if p.mask is not None:
        mask = p.mask.evaluate(p.batch, p.heads, p.len_q, p.len_k, p.dtype, p.seed * 4 + 3)
        if p.layout.startswith("expanded") and p.mask.rank == 4:
            repeated: Any = np.broadcast_to(mask, (p.batch, p.heads, *mask.shape[2:]))
            mask = repeated
        if p.mask.kind == "additive":
            mask_dtype = p.dtype if p.mask.dtype == "query" else "float32"
    k = p.k.evaluate((p.batch, p.kv_heads, p.len_k, p.dim), fmt, p.seed * 4 + 1, **repeat)
    v = p.v.evaluate((p.batch, p.kv_heads, p.len_k, p.dim_v), fmt, p.seed * 4 + 2, **repeat)
    for tensor in (k, v):
        tensor[:, :, : p.shared * p.page] = tensor[:1, :, : p.shared * p.page]
    return Inputs(
        dtype=p.dtype,
        q=p.q.evaluate((p.batch, p.heads, p.len_q, p.dim), fmt, p.seed * 4),
        k=k,
        v=v,
        scale=p.scale,
        is_causal=p.is_causal,
        mask=mask,
        mask_dtype=mask_dtype,
        enable_gqa=p.enable_gqa,
        layout=p.layout,
        window=p.window,
        softcap=p.softcap,
        alibi_slopes=_per_head(p.alibi_slopes, p, _ALIBI),
        sinks=_per_head(p.sinks, p, _SINKS),
        num_splits=p.num_splits,
        seqlens_q=p.seqlens_q if p.packed else None,
        seqlens_k=p.seqlens_k if p.packed or p.page else None,
        longest=p.longest,
        pages=_pages(p) if p.page else None,
        q_descale=_factors(p.q_descale, p, p.len_q, 0),
        k_descale=_factors(p.k_descale, p, p.len_k, 1),
        v_descale=_factors(p.v_descale, p, p.len_k, 2),
        descale_block=p.descale_block if p.descale_per == "block" else (1, 1),
    )


_ALIBI, _SINKS, *_DESCALES = (1 << n for n in range(40, 45))
"""Seeds of what is not q, k, v or the mask: their noise differs from these four."""


def _factors(fill: Fill | None, p: Problem, length: int, which: int) -> Array | None:
    """[B, Hkv], all the same per tensor, or [B, Hkv, blocks], of float32 numbers."""
    if fill is None:
        return None
    shape = [p.batch, p.kv_heads, 1, 1]
    if p.descale_per == "tensor":
        shape[:2] = [1, 1]
    if p.descale_per == "block":
        shape[2] = -(-length // p.descale_block[which > 0])
    b, h, n, d = shape
    made = fill.evaluate((b, h, n, d), FORMATS["float32"], _DESCALES[which] + p.seed)[..., 0]
    if p.descale_per == "block":
        return made
    return np.broadcast_to(made[..., 0], (p.batch, p.kv_heads)).copy()


def _pages(p: Problem) -> Pages:
    """Where the pages of each sequence lie: anywhere, in no order."""
    n = p.len_k // p.page
    count = p.batch * n + p.spare
    places = shuffled(max(count, 1), p.seed)
    table = places[: p.batch * n].reshape(p.batch, n).copy()
    table[:, : p.shared] = table[0, : p.shared]
    used = -(-np.array(p.seqlens_k, np.int64) // p.page)
    for b, first in enumerate(used):
        table[b, first:] = places[0]  # any valid page: one of a sequence's own, often
    return Pages(p.page, max(count, 1), table)


def _per_head(fill: Fill | None, p: Problem, seed: int) -> Array | None:
    """[Hq]: one float32 number for each head."""
    if fill is None:
        return None
    return fill.evaluate((1, 1, p.heads, 1), FORMATS["float32"], seed + p.seed)[0, 0, :, 0]


# -- JSON ---------------------------------------------------------------------------------


def _check_fill(f: Fill) -> None:
    if f.period < 1:
        raise ProblemError(f"a fill's period is {f.period}; it must be at least 1")
    if not f.spread >= 0:
        raise ProblemError(f"a fill's spread is {f.spread}; it must be at least 0")
    numbers = (f.level, f.base, f.spread, *(value for _, value in f.plants))
    if not all(map(math.isfinite, numbers)):
        raise ProblemError("a fill's level, base, spread and planted values must be finite")


def _check_mask(m: Mask) -> None:
    _check_fill(m.bias)
    if m.rank not in (1, 2, 3, 4):
        raise ProblemError(f"a mask's rank is {m.rank}; it must be 1 to 4")
    if m.amount < 0:
        raise ProblemError(f"a mask's amount is {m.amount}; it must be at least 0")
    if m.dtype not in ("float32", "query"):
        raise ProblemError(f"a mask's dtype is {m.dtype!r}; it must be float32 or query")


def _plain(record: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        default = field.default
        # -0.0 == 0.0, and the two are different inputs.
        if value == default and repr(value) == repr(default):
            continue
        plain[field.name] = _plain(value) if dataclasses.is_dataclass(value) else value
    return plain


def _build(cls: type, data: dict[str, Any], where: str) -> Any:
    if not isinstance(data, dict):
        raise ProblemError(f"{where} must be a JSON object, not {data!r}")
    hints = typing.get_type_hints(cls)
    known = {f.name for f in dataclasses.fields(cls)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise ProblemError(f"{where} has the unknown field {unknown[0]!r}")
    return cls(
        **{name: _value(hints[name], value, f"{where}.{name}") for name, value in data.items()}
    )


def _value(hint: Any, value: Any, where: str) -> Any:
    name = where.rsplit(".", 1)[-1]
    if name in _CHOICES and value not in _CHOICES[name]:
        raise ProblemError(f"{where} is {value!r}; it must be one of {', '.join(_CHOICES[name])}")
    if name == "plants":
        if not isinstance(value, list | tuple):
            raise ProblemError(f"{where} must be a list, not {value!r}")
        return tuple(_plant(item, where) for item in value)
    if Mask in typing.get_args(hint):
        return None if value is None else _build(Mask, value, where)
    if name in ("window", "longest", "seqlens_q", "seqlens_k", "descale_block"):
        if not isinstance(value, list | tuple) or not all(type(x) is int for x in value):
            raise ProblemError(f"{where} must be a list of whole numbers, not {value!r}")
        return tuple(value)
    allowed = typing.get_args(hint) or (hint,)
    if Fill in allowed:
        return None if value is None else _build(Fill, value, where)
    if value is None and type(None) in allowed:
        return None
    if float in allowed and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if hint is int and not (isinstance(value, int) and not isinstance(value, bool)):
        raise ProblemError(f"{where} must be a whole number, not {value!r}")
    if hint is bool and not isinstance(value, bool):
        raise ProblemError(f"{where} must be true or false, not {value!r}")
    if hint is float or float in allowed:
        raise ProblemError(f"{where} must be a number, not {value!r}")
    if name in ("dtype", "scores", "values") and not isinstance(value, str):
        raise ProblemError(f"{where} must be a string, not {value!r}")
    return value


def _plant(item: Any, where: str) -> tuple[tuple[int, int, int, int], float]:
    try:
        (b, h, pos, c), value = item
        return (int(b), int(h), int(pos), int(c)), float(value)
    except (TypeError, ValueError):
        raise ProblemError(
            f"{where} holds {item!r}, not [[b, h, position, channel], value]"
        ) from None


def noise_free(p: Problem) -> bool:
    """Whether no tensor holds noise."""
    return all(f.noise == "none" for f in (p.q, p.k, p.v))


def elements(p: Problem) -> int:
    """How many multiply-adds q.k costs: the size by which problems are compared."""
    return int(np.prod([p.batch, p.heads, p.len_q, max(p.len_k, 1), p.dim + p.dim_v]))
