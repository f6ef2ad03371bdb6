"""Semantics: what Triton's operations compute on a GPU, for its interpreter on a CPU.

The interpreter keeps bfloat16 and float8 as unsigned integers and computes with those. Here
every operation that looks at the value decodes it, computes in float32 and rounds the result
to its type; what only moves data keeps the bits.

Compared bit for bit with an H200 (Triton 3.6) by test_interpreter.py. What remains different,
and lies within what a kernel's contract allows, or in no contract:

- the order of sums, and a multiplication and an addition that the compiler fuses;
- division, exp2, exp and log are NumPy's, more accurate than the GPU's approximations;
- tensor cores truncate what they align inside one instruction, where float32 is summed here
  (on Hopper float8 operands leave 13 fraction bits: 2.5e-4 of the sum of magnitudes);
- float8 arithmetic outside of `tl.dot` does not compile for a GPU; here it rounds to float8;
- float8 e5m2 to bfloat16 makes finite numbers of infinity and NaN on a GPU, not here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from flashcheck import narrow
from flashcheck.narrow import Numbers

_FLOATS: dict[str, Any] = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


def replacements(interp: Any) -> Iterator[tuple[Any, str, Any]]:
    """(owner, attribute, value) of all that changes in triton.runtime.interpreter."""
    builder = interp.interpreter_builder
    yield builder, "__class__", faithful_builder(interp)
    yield builder, "options", _options(interp)
    reduce_ops, scan_ops = _faithful_ops(interp)
    yield interp, "ReduceOps", reduce_ops
    yield interp, "ScanOps", scan_ops
    if hasattr(interp, "_mxfp_value_handle_to_float32"):
        original = interp._mxfp_value_handle_to_float32

        def mxfp_value(handle: Any) -> Numbers:
            return number(handle).astype(np.float32) if is_float(handle) else original(handle)

        yield interp, "_mxfp_value_handle_to_float32", mxfp_value


def _options(interp: Any) -> Any:
    """The options of a GPU; overflow is checked for an assertion that is off by default."""
    options = interp.interpreter_builder.options
    allowed = dict.fromkeys(options.allowed_dot_input_precisions)
    if hasattr(interp._ir.INPUT_PRECISION, "BF16x3"):
        allowed |= dict.fromkeys(("bf16x3", "bf16x6"))
    return dataclasses.replace(
        options,
        allowed_dot_input_precisions=tuple(allowed),
        sanitize_overflow=options.debug,
    )


def is_float(handle: Any) -> bool:
    return bool(handle.dtype.scalar.is_floating())


def is_narrow(handle: Any) -> bool:
    """Whether a TensorHandle holds bit patterns of bfloat16 or float8."""
    return narrow.holds(handle.data, handle.dtype.scalar.name)


def number(handle: Any) -> Numbers:
    """The values in a TensorHandle, narrow floats as float32."""
    data: Numbers = handle.data
    return narrow.decode(data, handle.dtype.scalar.name) if is_narrow(handle) else data


def faithful_builder(interp: Any) -> type:
    """The subclass of InterpreterBuilder that computes as hardware does."""
    handle, tl, ir = interp.TensorHandle, interp.tl, interp._ir
    base: Any = interp.InterpreterBuilder

    def rounded(values: Numbers, dtype: Any) -> Any:
        """A TensorHandle of values in a float type, rounded to nearest."""
        name = dtype.scalar.name
        if name in narrow.NAMES:
            return handle(narrow.encode(values, name), dtype.scalar)
        return handle(values.astype(_FLOATS[name], copy=False), dtype.scalar)

    class FaithfulBuilder(base):  # type: ignore[misc]
        # -- constants and casts

        def get_bf16(self, value: float) -> Any:
            return rounded(np.array([value], np.float32), tl.bfloat16)

        def cast_impl(self, src: Any, dst_type: Any) -> Any:
            name = dst_type.scalar.name
            if name in narrow.NAMES:
                return rounded(number(src), dst_type)
            if is_narrow(src):
                to = interp._get_np_dtype(dst_type)
                return handle(number(src).astype(to), dst_type.scalar)
            return super().cast_impl(src, dst_type)

        def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
            name = dst_type.scalar.name
            if "fp8e4b15" in (src.dtype.scalar.name, name):
                return super().create_fp_to_fp(src, dst_type, rounding_mode)
            values = number(src)
            if rounding_mode != ir.ROUNDING_MODE.RTZ:
                return rounded(values, dst_type)
            if name in narrow.NAMES:
                return handle(narrow.encode(values, name, toward_zero=True), dst_type.scalar)
            near = values.astype(_FLOATS[name])
            past = np.abs(near) > np.abs(values)
            cut = np.where(past, np.nextafter(near, near.dtype.type(0)), near)
            return handle(cut, dst_type.scalar)

        # -- elementwise

        def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
            if not (is_narrow(lhs) or is_narrow(rhs)):
                return super().binary_op(lhs, rhs, op)
            result = op(number(lhs), number(rhs))
            if result.dtype == np.bool_:
                return handle(result, tl.int1)
            return rounded(result, lhs.dtype)

        def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
            if op is np.where or not any(map(is_narrow, (lhs, rhs, other))):
                return super().ternary_op(lhs, rhs, other, op)
            return rounded(op(number(lhs), number(rhs), number(other)), other.dtype)

        def unary_op(self, arg: Any, op: Any) -> Any:
            if not is_narrow(arg):
                return super().unary_op(arg, op)
            return rounded(op(number(arg)), arg.dtype)

        def create_fabs(self, arg: Any) -> Any:
            return self.unary_op(arg, np.abs)

        def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
            return self.binary_op(lhs, rhs, np.fmin)

        def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
            return self.binary_op(lhs, rhs, np.fmax)

        def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
            if propagate_nans == ir.PROPAGATE_NAN.NONE:
                return self.create_minnumf(self.create_maxnumf(arg, lo), hi)
            return self.ternary_op(arg, lo, hi, np.clip)

        def create_fma(self, x: Any, y: Any, z: Any) -> Any:
            if z.dtype.scalar.name not in narrow.NAMES | {"fp16", "fp32"}:
                return super().create_fma(x, y, z)
            return rounded(narrow.odd_fma(number(x), number(y), number(z)), z.dtype)

        # -- matrix products

        def create_dot(self, a: Any, b: Any, d: Any, precision: Any, imprecise: Any) -> Any:
            if not is_float(a) or a.dtype.scalar.name == "fp64":
                return super().create_dot(a, b, d, precision, imprecise)
            left, right = number(a).astype(np.float32), number(b).astype(np.float32)
            if d.data.dtype == np.float16:
                step = 256 // a.dtype.scalar.primitive_bitwidth
                return handle(_half_accumulator(left, right, d.data, step), d.dtype.scalar)
            if a.dtype.scalar.name == "fp32":
                product = _float32_dot(left, right, str(precision).rpartition(".")[2])
            else:
                product = np.matmul(left, right)
            return handle(product + d.data, d.dtype.scalar)

        # -- memory

        def create_descriptor_load(self, desc: Any, indices: Any, *rest: Any) -> Any:
            return self._padded(super().create_descriptor_load, desc, indices, *rest)

        def create_tensor_pointer_load(
            self, ptr: Any, boundary_check: Any, padding: Any, *rest: Any
        ) -> Any:
            load = super().create_tensor_pointer_load
            name = ptr.base.get_element_ty().name
            if padding != ir.PADDING_OPTION.PAD_NAN or name not in narrow.NAMES:
                return load(ptr, boundary_check, padding, *rest)
            loaded = load(ptr, boundary_check, ir.PADDING_OPTION.PAD_ZERO, *rest)
            return _with_nan(loaded, ptr.materialize_pointers(boundary_check)[1], name)

        def _padded(self, load: Any, desc: Any, indices: Any, *rest: Any) -> Any:
            """Narrow formats padded with NaN: NumPy has none for unsigned integers."""
            name, padding = desc.base.get_element_ty().name, desc.padding
            if padding != ir.PADDING_OPTION.PAD_NAN or name not in narrow.NAMES:
                return load(desc, indices, *rest)
            try:
                desc.padding = ir.PADDING_OPTION.PAD_ZERO
                loaded = load(desc, indices, *rest)
            finally:
                desc.padding = padding
            return _with_nan(loaded, desc.materialize_pointers(indices)[1], name)

        def create_atomic_rmw(
            self, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
        ) -> Any:
            if op != ir.ATOMIC_OP.FADD or not is_narrow(val):
                return super().create_atomic_rmw(op, ptr, val, mask, sem, scope)
            # One element after the other, since two may have one address.
            pointers, values, taken = np.broadcast_arrays(ptr.data, number(val), mask.data)
            name, kind = val.dtype.scalar.name, val.data.dtype
            old = np.zeros(pointers.shape, kind)
            yes = np.ones(1, np.bool_)
            for at in zip(*np.nonzero(taken), strict=True):
                place = pointers[at].reshape(1)
                found = interp._interpreter.load(place, yes, np.zeros(1, kind), kind)
                total = narrow.encode(narrow.decode(found, name) + values[at], name)
                interp._interpreter.store(place, total, yes)
                old[at] = found[0]
            return handle(old, val.dtype.scalar)

        # -- words

        def create_print(self, prefix: Any, hex: Any, values: Any, *rest: Any) -> None:
            if not hex:
                values = [handle(number(v), tl.float32) if is_narrow(v) else v for v in values]
            super().create_print(prefix, hex, values, *rest)

    def _with_nan(loaded: Any, mask: Any, name: str) -> Any:
        inside = np.asarray(getattr(mask, "data", mask))
        nan = narrow.encode(np.array([np.nan], np.float32), name)
        return handle(np.where(inside, loaded.data, nan), loaded.dtype)

    return FaithfulBuilder


def _float32_dot(a: Numbers, b: Numbers, precision: str) -> Numbers:
    """The product of float32 operands as tensor cores are made to compute it.

    Tensor cores ignore what TF32 has no bits for: they truncate the operands (measured on an
    H200, mma and wgmma; PTX leaves it open), so the error is up to 2^-10 of each. The `x3`
    and `x6` schemes split operands into leading and trailing parts, rounded to nearest, and
    leave out the smallest products.
    """
    if precision == "TF32":
        return np.asarray(np.matmul(narrow.tf32(a), narrow.tf32(b)))
    if precision == "TF32x3":
        (a0, a1), (b0, b1) = _tf32_parts(a), _tf32_parts(b)
        return np.asarray((a1 @ b0 + a0 @ b1) + a0 @ b0)
    if precision in ("BF16x3", "BF16x6"):
        (a0, a1, a2), (b0, b1, b2) = _bfloat16_parts(a), _bfloat16_parts(b)
        small = a1 @ b0 + a0 @ b1
        if precision == "BF16x6":
            small = (a2 @ b0 + a1 @ b1 + a0 @ b2) + small
        return np.asarray(small + a0 @ b0)
    return np.asarray(np.matmul(a, b))


def _tf32_parts(x: Numbers) -> tuple[Numbers, Numbers]:
    large = narrow.tf32(x, nearest=True)
    return large, narrow.tf32(x - large, nearest=True)


def _bfloat16_parts(x: Numbers) -> list[Numbers]:
    parts = []
    for _ in range(3):
        part = narrow.decode(narrow.encode(x, "bf16"), "bf16")
        parts.append(part)
        x = x - part
    return parts


def _half_accumulator(a: Numbers, b: Numbers, acc: Numbers, step: int) -> Numbers:
    """A float16 accumulator is rounded after each instruction, 256 bits of a row of `a`."""
    for start in range(0, a.shape[-1], step):
        stop = start + step
        product = np.matmul(a[..., start:stop], b[..., start:stop, :])
        acc = (product + acc.astype(np.float32)).astype(np.float16)
    return acc


# -- reductions and scans -----------------------------------------------------------------


def _faithful_ops(interp: Any) -> tuple[type, type]:
    """ReduceOps and ScanOps that look at values, and round as often as hardware does."""
    tl = interp.tl
    reduce_base: Any = interp.ReduceOps
    scan_base: Any = interp.ScanOps

    class Rounding:
        def to_tensor(self, ret: Any, dtype: Any) -> Any:
            values = np.asarray(ret)
            if dtype.scalar.name in narrow.NAMES and values.dtype.kind == "f":
                ret = narrow.encode(values, dtype.scalar.name)
                ret = ret if ret.shape else ret[()]
            return super().to_tensor(ret, dtype)  # type: ignore[misc]

    class FaithfulReduceOps(Rounding, reduce_base):  # type: ignore[misc]
        def min_max(self, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
            input = input[0] if isinstance(input, tuple) else input
            values = number(input.handle)
            largest = val_reduce_op in (np.max, np.nanmax)
            keep = {"axis": self.axis, "keepdims": self.keep_dims}
            found = (np.fmax if largest else np.fmin).reduce(values, **keep)
            value = self.to_tensor(found, input.dtype)
            if idx_reduce_op is None:
                return value
            if values.dtype.kind == "f":
                worst = values.dtype.type(-np.inf if largest else np.inf)
                values = np.where(np.isnan(values), worst, values)
            index = (np.argmax if largest else np.argmin)(values, **keep)
            return value, self.to_tensor(index, tl.int32)

        def sum(self, input: Any) -> Any:
            name = input.dtype.scalar.name
            if name not in narrow.NAMES | {"fp16"}:
                return super().sum(input)
            values = number(input.handle)
            whole = self.axis is None
            moved = values.reshape(-1) if whole else np.moveaxis(values, self.axis, 0)
            total = _tree_sum(moved, name)
            if self.keep_dims:
                shape = (1,) * values.ndim
                total = total.reshape(shape) if whole else np.expand_dims(total, self.axis)
            return self.to_tensor(total, input.dtype)

    class FaithfulScanOps(Rounding, scan_base):  # type: ignore[misc]
        def cumsum(self, input: Any) -> Any:
            return self._accumulate(input, np.add) or super().cumsum(input)

        def cumprod(self, input: Any) -> Any:
            return self._accumulate(input, np.multiply) or super().cumprod(input)

        def _accumulate(self, input: Any, op: Any) -> list[Any]:
            if not is_narrow(input.handle):
                return []
            name = input.dtype.scalar.name
            values = np.moveaxis(number(input.handle), self.axis, 0).copy()
            for i in range(1, len(values)):
                values[i] = _once(op(values[i - 1], values[i]), name)
            return [self.to_tensor(np.moveaxis(values, 0, self.axis), input.dtype)]

    return FaithfulReduceOps, FaithfulScanOps


def _tree_sum(values: Numbers, name: str) -> Numbers:
    """The sum over the first axis in halves, each addition rounded to the format."""
    while len(values) > 1:
        half = len(values) // 2
        rest = values[2 * half :]
        values = _once(values[:half] + values[half : 2 * half], name)
        values = np.concatenate([values, rest]) if len(rest) else values
    return np.asarray(values[0])


def _once(values: Numbers, name: str) -> Numbers:
    if name not in narrow.NAMES:
        return values
    return narrow.decode(narrow.encode(values, name), name)
