"""Narrow: bfloat16 and float8 as the bit patterns that Triton's interpreter stores.

Conversions round to nearest, ties to even, with subnormals, and are exact the other way.
Past the largest finite number bfloat16 becomes infinite, as `cvt.rn.bf16.f32` does. The
float8 formats saturate, infinities too, as Triton's conversions on an NVIDIA GPU do
(`cvt.rn.satfinite`); torch gives NaN or an infinity there. NaN stays NaN. Rounded toward
zero, an infinity stays one in float8 e5m2. (All measured on an H200 with Triton 3.6, but for
e4m3 and float16 toward zero, which it does not compile to float8.)
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
Bits = NDArray[Any]

_TYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16,
    "fp8e4nv": ml_dtypes.float8_e4m3fn,
    "fp8e5": ml_dtypes.float8_e5m2,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz,
    "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
}
NAMES = frozenset(_TYPES)
"""Triton's names of the formats that are handled here; not `fp8e4b15`, which is its own."""

_STORED = {name: np.dtype(np.uint16 if name == "bf16" else np.uint8) for name in NAMES}
_LARGEST = {
    "fp8e4nv": np.float32(448),
    "fp8e5": np.float32(57344),
    "fp8e4b8": np.float32(240),
    "fp8e5b16": np.float32(57344),
}


def holds(data: Bits, name: str) -> bool:
    """Whether `data` are bit patterns of that format."""
    return name in NAMES and data.dtype == _STORED[name]


def decode(bits: Bits, name: str) -> Numbers:
    """The values as float32, exactly."""
    return np.asarray(np.ascontiguousarray(bits).view(_TYPES[name]).astype(np.float32))


def encode(values: Numbers, name: str, toward_zero: bool = False) -> Bits:
    """The bit patterns of the nearest numbers of that format."""
    if values.dtype.kind in "iu":
        values = values.astype(np.float64)
    single = odd_float32(values) if values.dtype == np.float64 else values.astype(np.float32)
    with np.errstate(all="ignore"):
        if name in _LARGEST and not (toward_zero and name == "fp8e5"):
            single = np.clip(single, -_LARGEST[name], _LARGEST[name])
        bits = np.asarray(single.astype(_TYPES[name])).view(_STORED[name])
    if toward_zero:
        # One pattern back is one number nearer to zero, and from infinity the largest.
        bits = bits - (np.abs(decode(bits, name)) > np.abs(single)).astype(bits.dtype)
    return bits


def odd_float32(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rounded to odd: a second rounding to at most 22 bits is then as good as the only one.

    Boldo and Melquiond, *Emulation of a FMA and Correctly Rounded Sums: Proved Algorithms
    Using Rounding to Odd*, IEEE Trans. Computers 57 (2008).
    """
    with np.errstate(all="ignore"):
        near = values.astype(np.float32)
        error = values - near
        return _to_odd(near, error, np.uint32)


def odd_fma(x: Numbers, y: Numbers, z: Numbers) -> NDArray[np.float64]:
    """x * y + z of numbers of at most 24 bits, rounded once, to odd, to float64."""
    with np.errstate(all="ignore"):
        product = x.astype(np.float64) * y.astype(np.float64)
        addend = z.astype(np.float64)
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)
        return _to_odd(total, error, np.uint64)


def tf32(values: NDArray[np.float32], nearest: bool = False) -> NDArray[np.float32]:
    """With TF32's ten fraction bits: the rest cut off, or rounded as cvt.rna, ties away."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    kept = (bits + np.uint32(0x1000 if nearest else 0)) & np.uint32(0xFFFFE000)
    return np.where(special, bits, kept).view(np.float32)


def _to_odd(near: Numbers, error: Numbers, word: Any) -> Numbers:
    """The neighbour with an odd last bit, where the rounding to `near` was in error."""
    even = (np.atleast_1d(near).view(word) & word(1)).reshape(near.shape) == 0
    step = np.nextafter(near, np.copysign(near.dtype.type(np.inf), error).astype(near.dtype))
    wrong = even & np.isfinite(near) & (error != 0) & ~np.isnan(error)
    return np.asarray(np.where(wrong, step, near))
