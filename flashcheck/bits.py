"""Bits: tensors as the bits of their own dtype, for hashes and for files.

Tensors are float64 in memory (see `inputs`). Their conversion here is exact both ways: signs
of zero, subnormals, and the sign and payload of a NaN, which NumPy's casts may lose.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from flashcheck.arena import NUMPY_DTYPES
from flashcheck.formats import FORMATS
from flashcheck.inputs import DESCALES, PER_HEAD, Inputs

_NATIVE = ("bool", "float16", "float32", "float64")

Bits = NDArray[np.unsignedinteger[Any]]


def bits_sha256(x: Inputs) -> str:
    """Of the bits of q, k, v and the mask in their own dtypes, with names and shapes."""
    digest = hashlib.sha256()
    for name, (dtype, values) in _named(x).items():
        bits = to_bits(values, dtype)
        digest.update(f"{name} {dtype} {list(values.shape)}\n".encode())
        digest.update(bits.astype(bits.dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest()


def _named(x: Inputs) -> dict[str, tuple[str, NDArray[Any]]]:
    tensors: dict[str, tuple[str, NDArray[Any]]] = {
        name: (x.dtype, getattr(x, name)) for name in ("q", "k", "v")
    }
    if x.mask is not None:
        tensors["mask"] = (x.mask_dtype, x.mask)
    for name in (*PER_HEAD, *DESCALES):
        if getattr(x, name) is not None:
            tensors[name] = ("float32", getattr(x, name))
    return tensors


def pack(x: Inputs) -> bytes:
    """q, k, v and the mask as `pack_named` writes them. Raises ValueError as it does."""
    return pack_named(_named(x))


def pack_named(named: dict[str, tuple[str, NDArray[Any]]]) -> bytes:
    """{name: (dtype, values)} as safetensors; a dtype that NumPy lacks as unsigned integers.

    The metadata names the true dtypes. Raises ValueError for values that are not of theirs.
    """
    arrays: dict[str, NDArray[Any]] = {}
    for name, (dtype, values) in named.items():
        bits = to_bits(values, dtype)
        if not np.array_equal(from_bits(bits, dtype), values, equal_nan=dtype != "bool"):
            raise ValueError(f"{name} has values that {dtype} cannot hold")
        arrays[name] = bits.view(NUMPY_DTYPES[dtype]) if dtype in _NATIVE else bits
    dtypes = json.dumps({name: dtype for name, (dtype, _) in sorted(named.items())})
    return safetensors.numpy.save(arrays, metadata={"dtypes": dtypes})


def unpack(data: bytes, dtype: str, mask_dtype: str) -> dict[str, NDArray[Any]]:
    """The reverse of `pack`. Raises ValueError for what `pack` did not write."""
    try:
        arrays = safetensors.numpy.load(data)
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    of = {"mask": mask_dtype, **dict.fromkeys((*PER_HEAD, *DESCALES), "float32")}
    return {n: from_bits(a, of.get(n, dtype)) for n, a in arrays.items()}


def to_bits(values: NDArray[Any], dtype: str) -> Bits:
    """The bits of float64 values in `dtype`. A NaN keeps its sign and payload."""
    target = NUMPY_DTYPES[dtype]
    unsigned = np.dtype(f"u{target.itemsize}")
    with np.errstate(over="ignore", invalid="ignore"):
        # A copy even of float64, so that the caller's tensor is never written to.
        bits: Bits = np.array(values, dtype=target, order="C").view(unsigned)
    if dtype in ("bool", "float64"):
        return bits
    nan = np.isnan(values)
    if nan.any():
        wide = np.ascontiguousarray(values).view(np.uint64)[nan]
        stored = FORMATS[dtype].precision - 1
        payload = wide >> np.uint64(52 - stored) & np.uint64((1 << stored) - 1)
        if dtype == "float8_e4m3fn":  # it has one NaN of each sign
            payload[:] = 7
        payload[payload == 0] = 1 << (stored - 1)
        sign = wide >> np.uint64(63) << np.uint64(8 * target.itemsize - 1)
        exponent = ((1 << (8 * target.itemsize - 1 - stored)) - 1) << stored
        bits[nan] = (sign | np.uint64(exponent) | payload).astype(unsigned)
    return bits


def from_bits(bits: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The reverse of `to_bits`; takes the bits under any dtype of their size."""
    target = NUMPY_DTYPES[dtype]
    typed = np.array(bits, order="C").view(target)
    if dtype in ("bool", "float64"):
        return typed
    with np.errstate(invalid="ignore"):
        values = typed.astype(np.float64)
    nan = np.isnan(values)
    if nan.any():
        narrow = typed.view(f"u{target.itemsize}")[nan].astype(np.uint64)
        stored = FORMATS[dtype].precision - 1
        payload = narrow & np.uint64((1 << stored) - 1)
        if dtype == "float8_e4m3fn":
            payload[:] = 4
        sign = narrow >> np.uint64(8 * target.itemsize - 1) << np.uint64(63)
        wide = sign | np.uint64(0x7FF << 52) | payload << np.uint64(52 - stored)
        values.view(np.uint64)[nan] = wide
    return values
