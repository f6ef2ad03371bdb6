"""Small Triton kernels for test_interpreter.py: each does one thing to one block."""

import triton
import triton.language as tl


@triton.jit
def convert(x, y, N: tl.constexpr, ROUNDING: tl.constexpr = None):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at).to(y.dtype.element_ty, fp_downcast_rounding=ROUNDING))


@triton.jit
def binary(x, y, z, N: tl.constexpr, OP: tl.constexpr):
    at = tl.arange(0, N)
    a = tl.load(x + at)
    b = tl.load(y + at)
    if OP == "add":
        c = a + b
    elif OP == "sub":
        c = a - b
    elif OP == "mul":
        c = a * b
    elif OP == "div":
        c = a / b
    elif OP == "maximum":
        c = tl.maximum(a, b)
    elif OP == "minimum":
        c = tl.minimum(a, b)
    elif OP == "less":
        c = a < b
    elif OP == "equal":
        c = a == b
    elif OP == "not_equal":
        c = a != b
    elif OP == "where":
        c = tl.where(a > b, a, b)
    elif OP == "neg":
        c = -a
    elif OP == "abs":
        c = tl.abs(a)
    elif OP == "fma":
        c = tl.fma(a, b, a)
    elif OP == "clamp":
        c = tl.clamp(a, -tl.abs(b), tl.abs(b))
    elif OP == "scalar":
        c = (a * 3 + 0.3).to(z.dtype.element_ty)
    tl.store(z + at, c)


@triton.jit
def _larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def reduce(x, y, M: tl.constexpr, N: tl.constexpr, OP: tl.constexpr):
    rows = tl.arange(0, M)
    a = tl.load(x + rows[:, None] * N + tl.arange(0, N)[None, :])
    if OP == "sum":
        c = tl.sum(a, 1)
    elif OP == "member_sum":
        c = a.sum(1)
    elif OP == "max":
        c = tl.max(a, 1)
    elif OP == "min":
        c = tl.min(a, 1)
    elif OP == "argmax":
        c = tl.argmax(a, 1)
    elif OP == "generic":
        c = tl.reduce(a, 1, _larger)
    elif OP == "last_of_cumsum":
        c = tl.sum(tl.where(tl.arange(0, N)[None, :] == N - 1, tl.cumsum(a, 1), 0.0), 1)
    tl.store(y + rows, c)


@triton.jit
def dot(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m = tl.arange(0, M)[:, None]
    n = tl.arange(0, N)[None, :]
    left = tl.load(a + m * K + tl.arange(0, K)[None, :])
    right = tl.load(b + tl.arange(0, K)[:, None] * N + n)
    out = c.dtype.element_ty
    tl.store(c + m * N + n, tl.dot(left, right, input_precision=PRECISION, out_dtype=out))


@triton.jit
def add_atomically(x, total, N: tl.constexpr):
    tl.atomic_add(total + tl.arange(0, N) % 2, tl.load(x + tl.arange(0, N)))


@triton.autotune([triton.Config({"STEP": 2}), triton.Config({"STEP": 3})], key=["n"])
@triton.jit
def tuned(x, n, STEP: tl.constexpr):
    tl.store(x + tl.arange(0, 4), n * STEP)


@triton.jit
def _fails(x):
    tl.static_assert(x is None, "not this one")
    return x


@triton.jit
def failing(x):
    tl.store(x, _fails(tl.load(x)))


@triton.jit
def attention(q, k, v, o, scale, L: tl.constexpr, D: tl.constexpr, M: tl.constexpr,
              N: tl.constexpr):  # fmt: skip
    rows = tl.program_id(0) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + d[None, :])
    m = tl.full([M], float("-inf"), tl.float32)
    l = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(0, L, N):
        columns = start + tl.arange(0, N)
        key = tl.load(k + columns[None, :] * D + d[:, None])
        value = tl.load(v + columns[:, None] * D + d[None, :])
        s = tl.dot(query, key) * scale
        new = tl.maximum(m, tl.max(s, 1))
        alpha = tl.exp(m - new)
        p = tl.exp(s - new[:, None])
        l = l * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(value.dtype), value, acc * alpha[:, None])
        m = new
    tl.store(o + rows[:, None] * D + d[None, :], (acc / l[:, None]).to(o.dtype.element_ty))
