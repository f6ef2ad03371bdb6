"""Arithmetic: a contract's table resolved for one dtype on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flashcheck.formats import FLOAT8, FLOAT8_OUTPUTS, FORMATS, Array, Format
from flashcheck.kernel import Contract

EXP_FLUSH = 2.0**-124
"""An exp below this may be flushed to zero (the contract)."""

LAG = 16.0
"""Octaves by which a running maximum may lag by default: 2^16 overflows P in float16."""

E8M13 = 2.0**-13
"""What a float8 tensor core of Hopper or Ada cuts off: 13 bits follow the point (MMA-Sim)."""

STEP = 16
"""Products that such a core adds at once: 32 on Hopper, 16 on Ada."""

WILD = 100.0
"""Score errors beyond which any key may carry all the weight."""


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A contract's numbers for one dtype and device.

    u: unit roundoff of the statistics; qk, acc: of the two products' sums (a tensor core
    truncates, which doubles it); scaling: of the scale and its product with q, k or q.k, and
    scaling_loss: what such a product may lose absolutely beside eta; division: of the quotient
    P.V / normalizer; terms: products that each product of q.k is made of; input_error: relative
    error of each factor of q.k;
    exp: relative error of exp; p: format of P or None where P is not rounded further;
    eta: absolute error of a float32 result that underflows; limit: a quarter of the largest
    finite statistic; scaled: format to which q or k times scale is rounded, or None; lag:
    octaves by which the running maximum may stay behind; fold: roundings of a factor log2(e),
    where one may be taken; block: keys whose sums are formed by themselves, or None;
    least_offset, most_offset: octaves by which P may be enlarged before it is rounded;
    cut_qk, cut_acc: whether a tensor core with E8M13 forms the products' sums.
    """

    u: float
    qk: float
    acc: float
    scaling: float
    division: float
    terms: int
    input_error: float
    scaling_loss: float
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
    least_offset: float
    most_offset: float
    cut_qk: bool
    cut_acc: bool

    @property
    def factor_loss(self) -> float:
        """Absolute error of a product with a factor of float8, in float32, that underflows."""
        return max(self.eta, self.scaling_loss)

    @property
    def exact_difference(self) -> bool:
        """Whether exp is taken of s - m, rounded once, so that neither has to be scaled."""
        return self.fold == 0

    def chain(self, n: int) -> int:
        """Roundings of one term in a sum over n keys: products, additions and rescales."""
        if self.block is None:
            return 2 * n + 3
        return min(2 * n + 3, self.block + 2 * math.ceil(n / self.block) + 5)

    @property
    def lost_in_p(self) -> float:
        """Absolute error of P that underflows, P not being enlarged."""
        if self.p is None:
            return 0.0
        kappa = self.p.min_normal if self.flushes and self.p.min_exponent < -100 else 0.0
        return max(kappa, self.p.underflow) * math.exp2(-self.least_offset)

    @property
    def normal_p(self) -> float:
        """The smallest P that cannot underflow when it is rounded, P not being enlarged."""
        return 0.0 if self.p is None else self.p.min_normal * math.exp2(-self.least_offset)

    def cut(self, n: int, block: int | None = None) -> float:
        """What E8M13 loses of a sum of n products, relative to the sum of their magnitudes.

        Every product loses 2^-13 of the largest summand of its step, and every step twice that:
        the sum so far, and the result. Blocks are whole steps unless their size is given.
        """
        steps = math.ceil(n / STEP)
        if block is not None:
            steps = max(steps, math.ceil(n / block) * math.ceil(block / STEP))
        return (n + 2 * steps) * E8M13

    def rescales(self, n: int, spread: Array) -> Array | float:
        """Relative error of all rescale factors of one term together, n keys in all.

        `spread`, in nats, is how far the scores of a row lie apart: no maximum lags by more.
        """
        granted = (8 + n) * self.u
        if self.block is not None:
            # A merge's factor is an exp as well, of an lse that holds its logarithm's error. One
            # factor more is a first block that is cut, or a sink at the end.
            factors = (math.ceil(n / self.block) + 1) * self.exp
            log_l = math.log(max(n, 1)) + np.minimum(spread, self.lag * math.log(2))
            log_l = log_l + self.most_offset * math.log(2)
            return np.minimum(granted, factors + 8 * self.u * (1 + log_l))
        return granted


def arithmetic(
    contract: Contract, dtype: str, device: str = "cpu", out_dtype: str | None = None
) -> Arithmetic:
    """Resolve the contract's table for a dtype on a device.

    out_dtype: of float8 inputs, bfloat16 (None) or float16; of others their own dtype.

    Errors: ValueError for another out_dtype, for e8m13 where the inputs are not float8, and for
    a rescale_threshold and p_offset that let P exceed its format.
    """
    fmt = FORMATS[dtype]
    float8 = dtype in FLOAT8
    allowed = FLOAT8_OUTPUTS if float8 else (dtype,)
    if out_dtype is not None and out_dtype not in allowed:
        raise ValueError(f"the output is {out_dtype}; of {dtype} it is {' or '.join(allowed)}")
    if not float8 and "e8m13" in (contract.qk, contract.accumulator):
        raise ValueError("e8m13 is the accumulator of float8 tensor cores: these inputs are wider")
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
    # q or k may be scaled in float32 where all else is float64.
    scaling_loss = 0.0
    if narrow and dtype != "float64":
        scaling_loss = FORMATS["float32"].min_normal if flushes else FORMATS["float32"].underflow
    # The table's exp and P are the dtype's, however wide the statistics are.
    exp = contract.exp_error
    if exp is None:
        exp = fmt.unit_roundoff / 4 if half else 8 * fmt.unit_roundoff
    p = FORMATS[contract.p_dtype] if contract.p_dtype else (fmt if half else None)
    if p is None and fmt.precision < wide.precision:
        exp = (1 + exp) * (1 + fmt.unit_roundoff) - 1
    least_offset = most_offset = 0.0
    lag = max(LAG, contract.rescale_threshold)
    if p is not None and contract.p_offset is not None:
        least_offset = most_offset = contract.p_offset
        lag = min(lag, _headroom(contract, p))
    elif p is not None and float8:
        _headroom(contract, p)
        most_offset = math.log2(fmt.max_finite)
    # The cuts of an accumulator that is itself subnormal lie below the smallest normal number.
    cuts = "e8m13" in (contract.qk, contract.accumulator)
    return Arithmetic(
        u=wide.unit_roundoff,
        qk=unit.get(qk_name, 2.0**-24) * truncation,
        acc=unit.get(acc_name, 2.0**-24) * truncation,
        scaling=2.0**-53 if dtype == "float64" else 2.0**-24,
        division=max(wide.unit_roundoff, unit.get(acc_name, 2.0**-24)),
        terms=3 if qk_name == "tf32x3" else 1,
        input_error=input_error,
        scaling_loss=scaling_loss,
        exp=exp,
        p=p,
        eta=least.min_normal if flushes or cuts else least.underflow,
        flushes=flushes,
        limit=FORMATS["float64" if dtype == "float64" else "float32"].max_finite / 4,
        out=FORMATS[out_dtype or allowed[0]],
        normalizer=contract.normalizer,
        scaled=fmt if contract.scale_in_input_dtype else None,
        lag=lag,
        fold=0.0 if contract.exp_form == "exp" else 2.0,
        block=contract.kv_block,
        least_offset=least_offset,
        most_offset=most_offset,
        cut_qk=contract.qk == "e8m13",
        cut_acc=contract.accumulator == "e8m13",
    )


def _headroom(contract: Contract, p: Format) -> float:
    """Octaves that the running maximum may lag. Raises ValueError where P would saturate."""
    octaves, offset = math.log2(p.max_finite), contract.p_offset or 0.0
    if contract.rescale_threshold + offset >= octaves:
        raise ValueError(
            f"rescale_threshold={contract.rescale_threshold:g} and p_offset={offset:g} let P reach "
            f"2^{contract.rescale_threshold + offset:g}, and {p.name} ends at {p.max_finite:g}, so "
            f"that P saturates: their sum must stay below {octaves:.3g} octaves"
        )
    return octaves - offset
