r"""The forward error bound, per element of out and lse, derived from the numeric contract.

Notation (row i fixed; j runs over the keys that the row sees, n = Lk):
s_j score, m = max s_j, D_j = m - s_j, w_j = e^{-D_j}, l = sum w_j, p_j = w_j / l,
o = sum p_j v_j, A_j = |scale| sum_c |q_c k_jc|; u unit roundoff of the statistics, u_p of P,
u_o of the output; gamma_n = n u / (1 - n u). docs/bound.md has the derivation at length.

1. Score. Any order of summation and four more roundings a term:
   delta_j = ((1 + gamma_D)(1 + gamma_5) - 1) A_j (+ bias: u (2 |b_j| + |s_j|)) + underflow.
2. Weight. The argument of exp is off by at most arg_j = u (|s_j| + |m| + 5 D_j) in computed
   quantities, exp by e_x, the rescale factors of one term together by (8 + n) u:
   r_j = arg_j - log(1 - e_x) - log(1 - (8 + n) u).
   The score's error enters numerator and normalizer alike; the rest need not, since a
   kernel may evaluate exp once for the normalizer and again for P (exp(s - lse)).
3. T = min(sum p_j |v_j - o| (e^{delta_j} - 1) / sum p_j e^{-delta_j}, max |v_j - o|) is the
   softmax's conditioning. With q_j = min(1, p_j e^{delta_j} / sum p e^{-delta}):
   N = sum q_j |v_j| ((1 + 4 u)(1 + gamma_acc) e^{r_j} - 1)       products and sums
   R = u_p max(sum q_j |v_j|, sum q_j |v_j - o| + T)              P rounded; normalizer from
                                                                  P before or after rounding
   M = (|o| + T) sum q_j ((1 + gamma_l) e^{r_j} - 1)              normalizer
   U = underflow of P, of exp, of products and rescales           absolute
   X = T + (N + R e^{max r}(1 + gamma_acc) + M + U) / (1 - the normalizer's relative error)
4. Division (4 u: reciprocals and their approximations) and one rounding:
   E = X' + u_o (|o| + X') + kappa_o,  X' = X + 4 u (|o| + X).

lse: |lse^ - lse| <= min(sum p_j (e^{H_j} - 1), max H_j) + the errors of the logarithm and of
the final sum, with H_j = delta_j + r_j + gamma_l: here common factors do not cancel.

float8 (docs/bound.md, section 18) adds its factors, offsets of P and shortened accumulators.

softcap, ALiBi and sinks (docs/bound.md, section 12) add to delta_j; a sink is a key of value 0.

Outside the contract's range the bound is infinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flashcheck.bounds.arithmetic import WILD
from flashcheck.bounds.arithmetic import Arithmetic as Arithmetic
from flashcheck.bounds.arithmetic import arithmetic as arithmetic
from flashcheck.bounds.extent import in_contract
from flashcheck.bounds.float8 import narrow
from flashcheck.bounds.lse import lse_bound
from flashcheck.bounds.out import out_bound
from flashcheck.bounds.scores import alibi_offset, score_error
from flashcheck.bounds.sink import lead, with_sink
from flashcheck.formats import Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.kernel import Contract
from flashcheck.oracle.float64 import BUFFER, Attention

EVALUATION = 1 + 2.0**-30
"""The bound is itself evaluated in float64, in fewer than 2^20 roundings of nonnegative terms."""


@dataclass(frozen=True, eq=False)
class Bound:
    """Per-element bounds: out [B, Hq, Lq, Dv], lse [B, Hq, Lq]; infinite outside the contract.

    `vacuous` marks elements of out about which the bound says too little: infinite, or at
    least half of the largest |v| that the row sees, unless a law fixes the value.
    """

    out: Array
    lse: Array
    vacuous: Bools


def bound(
    x: Inputs,
    at: Attention,
    contract: Contract,
    device: str = "cpu",
    out_dtype: str | None = None,
) -> Bound:
    """The bound on |out - exact out| and |lse - exact lse| of a kernel that keeps `contract`.

    `at` is the float64 tier's evaluation of the same inputs; `out_dtype` the dtype of the
    output where it is not the inputs': bfloat16 (None) or float16 for float8.

    Errors: those of `arithmetic`.
    """
    ar = arithmetic(contract, x.dtype, device, out_dtype)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        np.setbufsize(BUFFER)
        keys, seen, delta = with_sink(x, at, ar, score_error(x, at, ar))
        delta_max = delta.max(-1, keepdims=True, initial=0.0)
        gap = np.where(seen, at.m[..., None] - keys.s, 0.0)
        spread = gap.max(-1, keepdims=True, initial=0.0) + 2 * delta_max
        above, offset = lead(x, at), alibi_offset(x)
        if ar.exact_difference:
            # Splits may be merged by their lse, each between s and the row's, and rounded.
            largest = np.maximum(np.abs(keys.s), np.abs(at.lse)[..., None])
            magnitude = 5 * gap + np.minimum(largest, np.abs(keys.s) + np.abs(at.m)[..., None])
            magnitude = magnitude + 2 * offset[..., None]
        else:
            magnitude = np.abs(keys.s) + np.abs(at.m)[..., None] + 5 * gap + 2 * offset[..., None]
        magnitude = magnitude + 2 * np.minimum(spread, ar.lag * math.log(2))
        if ar.most_offset:
            magnitude = magnitude + 3 * ar.most_offset * math.log(2)
        if x.sinks is not None:
            magnitude[..., :1] += 6 * above[..., None]
        r = np.where(
            seen,
            ar.u * (magnitude + 6 * (delta + delta_max))
            - math.log1p(-ar.exp)
            - np.log1p(-np.minimum(ar.rescales(seen.shape[3], spread), 0.5)),
            0.0,
        )
        out, largest = out_bound(keys, seen, ar, delta, r, narrow(x))
        lse = lse_bound(keys, ar, delta, r, above, offset)
        inside = in_contract(x, at, ar, delta_max[..., 0])
        out = np.where(np.abs(at.out) + out < ar.out.max_finite, out, np.inf)
        # The weights at hand are themselves off by this much.
        off = 4 * at.lse_radius
        slack = EVALUATION * np.exp(np.minimum(off, 1.0))
        # Where scores err wildly the bound on out does not depend on the weights.
        weighed = EVALUATION * np.exp(np.minimum(off, np.where(delta_max[..., 0] > WILD, 1, 300)))
    # A row that sees no key is fixed by the contract, if its hidden scores fit; a sink alone is
    # its lse, but for the logarithm.
    out = np.where(at.seen[..., None], out * weighed[..., None], 0.0)
    lse = np.where(at.seen | (x.sinks is not None), lse * slack, 0.0)
    out = np.where(np.isnan(out) | ~inside[..., None], np.inf, out)
    lse = np.where(np.isnan(lse) | ~inside, np.inf, lse)
    vacuous = (~np.isfinite(out) | (out >= largest / 2)) & (largest > 0)
    return Bound(out, lse, vacuous & at.seen[..., None])
