"""Kernel: a callable and what it declares, and the numeric contract that it keeps."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Literal

from flashcheck.formats import FORMATS

if TYPE_CHECKING:
    from flashcheck.inputs import Inputs


def _check_choices(record: object) -> None:
    for name, hint in typing.get_type_hints(type(record)).items():
        choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
        if choices and getattr(record, name) not in choices:
            allowed = ", ".join(map(repr, choices))
            raise ValueError(f"{name} is {getattr(record, name)!r}; it must be one of {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a kernel promises about its own arithmetic; the bound is derived from it.

    The default is the widest contract. `None` means the table of the kernel contract
    (docs/contract.md): it depends on the dtype.

    qk                       format of the q.k products and sums
    statistics               format of scores, running max, normalizer, lse
    exp_error                relative error of exp
    exp_form                 "exp" of the rounded difference s - m, "exp2", "exp2_fma" or "any"
    p_dtype                  format to which P is rounded before P.V (None: input dtype)
    normalizer               sums P "before_rounding", "after_rounding" or "either"
    accumulator              format of the P.V sums
    kv_block                 keys per block, whose sums are formed by themselves (None: any)
    rescale_threshold        octaves by which the running maximum may lag
    scale_in_input_dtype     q or k times scale is rounded to the input dtype
    flushes_subnormals       None: float32 results may flush to zero on CUDA, not on a CPU
    p_offset                 octaves by which P is enlarged before it is rounded (None: any or none)

    "e8m13", for qk and accumulator, is the float8 accumulator of Hopper's and Ada's tensor cores.
    """

    qk: Literal["float32", "tf32", "tf32x3", "float64", "e8m13"] = "float32"
    statistics: Literal["float32", "float64"] = "float32"
    exp_error: float | None = None
    exp_form: Literal["any", "exp", "exp2", "exp2_fma"] = "any"
    p_dtype: str | None = None
    normalizer: Literal["before_rounding", "after_rounding", "either"] = "before_rounding"
    accumulator: Literal["float32", "float64", "e8m13"] = "float32"
    kv_block: int | None = None
    rescale_threshold: float = 0.0
    scale_in_input_dtype: bool = False
    flushes_subnormals: bool | None = None
    p_offset: float | None = None

    def __post_init__(self) -> None:
        _check_choices(self)
        if self.p_dtype is not None and self.p_dtype not in FORMATS:
            raise ValueError(f"p_dtype {self.p_dtype!r} is none of {', '.join(FORMATS)}")
        if self.exp_error is not None and not 0 <= self.exp_error < 1:
            raise ValueError(f"exp_error is {self.exp_error!r}; it must be at least 0, below 1")
        if self.kv_block is not None and self.kv_block < 1:
            raise ValueError(f"kv_block is {self.kv_block}; it must be at least 1 key, or None")
        if self.rescale_threshold < 0:
            raise ValueError(f"rescale_threshold is {self.rescale_threshold!r}; 0 or more octaves")
        if self.p_offset is not None and not 0 <= self.p_offset < math.inf:
            raise ValueError(f"p_offset is {self.p_offset!r}; 0 or more octaves, or None")


@dataclass(frozen=True, slots=True)
class Kernel:
    """An attention kernel under test: `fn(query, key, value, **options) -> out | (out, lse)`.

    The calling convention is that of torch's scaled_dot_product_attention. Fields declare
    what a signature cannot say; `None` means that the gate finds out by itself.

    descale_block: (queries, keys) of a block that has a float8 factor of its own; None, the
    default: q_descale, k_descale and v_descale are [B, Hkv].

    Errors: TypeError if `fn` cannot be called, ValueError for a field with an unknown value.
    """

    fn: Callable[..., Any]
    _: KW_ONLY
    name: str | None = None
    layout: Literal["bhsd", "bshd"] = "bhsd"
    causal_alignment: Literal["top_left", "bottom_right"] = "top_left"
    lse_base: Literal["e", "2"] = "e"
    masked_rows: Literal["zero", "nan", "unspecified"] = "zero"
    dtypes: Sequence[str] | None = None
    head_dims: Sequence[int] | None = None
    devices: Sequence[str] | None = None
    options: Sequence[str] | None = None
    configs: Mapping[str, Mapping[str, Any]] | None = None
    contract: Contract = Contract()
    deterministic: bool = True
    batch_invariant: bool = False
    positive_scale: bool = False
    backward: bool | None = None
    isolates_masked_nan: bool = False
    propagates_nan: bool = False
    exact_constant_v: bool = False
    descale_block: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn is a {type(self.fn).__name__}, which cannot be called")
        _check_choices(self)
        if self.descale_block is not None and min(self.descale_block) < 1:
            raise ValueError(f"descale_block is {self.descale_block}; a block has 1 row or more")


@dataclass(frozen=True, slots=True)
class Target:
    """A kernel as the gate knows it: everything but the function, which stays in the worker.

    name       as it appears in reports
    spec       what the user typed: a registered name, module:attribute or file.py:attribute
    kernel     the declarations, with `fn` replaced by `absent`
    options    the options that the kernel names, of `OPTIONS`
    required   those of them that have no default and must always be passed
    hidden     the signature hides names (**kwargs, a compiled object): plain form only
    returns_lse, dims, ... are found by probing: see `probe.py`
    source     sha256 of the source file, or None where there is none
    file, line where the function is defined, for annotations
    interpreted it runs in Triton's interpreter on a CPU, which takes small problems only
    note       what is not to be trusted about how it runs, a sentence, or None
    wrapped    what `spec` names is a flashcheck.Kernel, not the function itself
    """

    name: str
    spec: str
    kernel: Kernel
    options: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    hidden: bool = False
    source: str | None = None
    file: str | None = None
    line: int | None = None
    interpreted: bool = False
    note: str | None = None
    wrapped: bool = False

    @property
    def configs(self) -> tuple[str | None, ...]:
        """The names of the configurations; (None,) where there are none."""
        return tuple(self.kernel.configs) if self.kernel.configs else (None,)

    def not_taken(self, x: Inputs) -> str:
        """What the call needs and the kernel is declared not to take, after its name; or ""."""
        kernel, dim = self.kernel, x.q.shape[3]
        if kernel.dtypes is not None and x.dtype not in kernel.dtypes:
            return f"does not take {x.dtype}"
        if kernel.head_dims is not None and dim not in kernel.head_dims:
            return f"does not take head size {dim}"
        if kernel.positive_scale and x.scale is not None and x.scale <= 0:
            return f"does not take a scale of {x.scale}"
        missing = sorted(x.used - {*self.options, *self.required})
        return f"does not name {' and '.join(missing)}" if missing else ""


SDPA_OPTIONS: tuple[str, ...] = ("scale", "is_causal", "attn_mask", "enable_gqa")
"""Those of torch's scaled_dot_product_attention."""

OPTIONS: tuple[str, ...] = (
    *SDPA_OPTIONS, "window_size", "softcap", "alibi_slopes", "sinks", "num_splits",
    "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "block_table",
    "cache_seqlens", "q_descale", "k_descale", "v_descale",
)  # fmt: skip
"""The options of the kernel contract that this version tests."""

COMPANIONS: dict[str, tuple[str, ...]] = {
    "cu_seqlens_q": ("cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
    "block_table": ("cache_seqlens",),
}
"""Options that are passed with another, which stands for them all where it is tried or drawn."""


class TargetError(Exception):
    """A TARGET that cannot be loaded: one line that says what is wrong and what to do."""


def absent(*_: Any, **__: Any) -> Any:
    """Stands for a function that lives in another process."""
    raise TypeError("this kernel's function lives in its worker process")
