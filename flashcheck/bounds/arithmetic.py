"""Arithmetic: a contract's table resolved for one dtype on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashcheck.formats import FORMATS, Format
from flashcheck.kernel import Contract

EXP_FLUSH = 2.0**-124
"""An exp below this may be flushed to zero (the contract)."""

LAG = 16.0
"""Octaves by which a running maximum may lag by default: 2^16 overflows P in float16."""

WILD = 100.0
"""Score errors beyond which any key may carry all the weight."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A contract's numbers for one dtype and device.

    u: unit roundoff of the statistics; qk, acc: of the two products' sums (a tensor core
    truncates, which doubles it); input_error: relative error of each factor of q.k;
    exp: relative error of exp; p: format of P or None where P is not rounded further;
    eta: absolute error of a float32 result that underflows; limit: a quarter of the largest
    finite statistic; scaled: format to which q or k times scale is rounded, or None; lag:
    octaves by which the running maximum may stay behind; fold: roundings of a factor log2(e),
    where one may be taken; block: keys whose sums are formed by themselves, or None.
    """

    u: float
    qk: float
    acc: float
    input_error: float
    exp: float
    p: Format | None
    eta: float
    flushes: bool
    limit: float
    out: Format
    normalizer: str
    scaled: Format | None
    lag: float
    fold: float
    block: int | None

    @property
    def exact_difference(self) -> bool:
        """Whether exp is taken of s - m, rounded once, so that neither has to be scaled."""
        return self.fold == 0

    def chain(self, n: int) -> int:
        """Roundings of one term in a sum over n keys: products, additions and rescales."""
        if self.block is None:
            return 2 * n + 3
        return min(2 * n + 3, self.block + 2 * math.ceil(n / self.block) + 5)

    def rescales(self, n: int) -> float:
        """Relative error of all rescale factors of one term together, n keys in all."""
        granted = (8 + n) * self.u
        if self.block is not None:
            granted = min(granted, 8 * self.u + math.ceil(n / self.block) * self.exp)
        return granted


def arithmetic(contract: Contract, dtype: str, device: str = "cpu") -> Arithmetic:
    """Resolve the contract's table for a dtype on a device."""
    fmt = FORMATS[dtype]
    wide = FORMATS["float64" if dtype == "float64" else contract.statistics]
    half = fmt.precision < 24
    # The narrowest format of the three decides where a result underflows.
    stages = (contract.qk, contract.statistics, contract.accumulator)
    narrow = all(stage == "float64" for stage in stages) or dtype == "float64"
    least = FORMATS["float64" if narrow else "float32"]
    on_gpu = device.startswith("cuda")
    flushes = on_gpu if contract.flushes_subnormals is None else contract.flushes_subnormals
    flushes = flushes and dtype != "float64"
    unit = {"float64": 2.0**-53}
    qk_name = "float64" if dtype == "float64" else contract.qk
    acc_name = "float64" if dtype == "float64" else contract.accumulator
    # A tensor core may truncate its sums instead of rounding them.
    truncation = 2.0 if on_gpu and (half or qk_name.startswith("tf32")) else 1.0
    # TF32 keeps 11 bits of each factor and may truncate. Of three TF32 products the fourth is
    # left out, and each factor's second part is truncated: 3 * 2^-20 a product.
    input_error = {"tf32": 2.0**-10, "tf32x3": 1.5 * 2.0**-20}.get(qk_name, 0.0)
    exp = contract.exp_error
    if exp is None:
        exp = fmt.unit_roundoff / 4 if half else 8 * wide.unit_roundoff
    p = FORMATS[contract.p_dtype] if contract.p_dtype else (fmt if half else None)
    return Arithmetic(
        u=wide.unit_roundoff,
        qk=unit.get(qk_name, 2.0**-24) * truncation,
        acc=unit.get(acc_name, 2.0**-24) * truncation,
        input_error=input_error,
        exp=exp,
        p=p,
        eta=least.min_normal if flushes else least.underflow,
        flushes=flushes,
        limit=FORMATS["float64" if dtype == "float64" else "float32"].max_finite / 4,
        out=fmt,
        normalizer=contract.normalizer,
        scaled=fmt if contract.scale_in_input_dtype else None,
        lag=max(LAG, contract.rescale_threshold),
        fold=0.0 if contract.exp_form == "exp" else 2.0,
        block=contract.kv_block,
    )
