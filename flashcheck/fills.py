"""Fills: how the elements of one tensor are made from a few parameters.

An element is a level, which depends on its position in the sequence alone, plus noise,
which is a hash of (seed, batch, head, position, channel). Because the noise of an element
does not depend on the shape around it, shrinking a shape leaves every element that remains
as it was. The hash is splitmix64 (Steele, Lea, Flood, OOPSLA 2014) and all scaling is exact
or singly rounded IEEE arithmetic, so a fill gives the same bits everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from flashcheck.formats import Array, Format

Pattern = Literal["constant", "spike", "step", "stairs", "cycle", "alternate"]
Noise = Literal["none", "normal", "positive", "negative", "signs", "outliers", "wide", "special"]
Index = tuple[int, int, int, int]
Plant = tuple[Index, float]

PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
NOISES: tuple[Noise, ...] = get_args(Noise)


@dataclass(frozen=True, slots=True)
class Fill:
    """A recipe for one tensor [batch, heads, length, channels].

    pattern   level of position l (at counts from the end when negative)
      constant   level
      spike      level at position `at`, `base` elsewhere
      step       `base` before position `at`, level from there on
      stairs     base + level * (l // period)
      cycle      level where l % period == 0, `base` elsewhere
      alternate  level, -level, level, ...
    noise     added to the level, scaled by `spread`
      normal     near-Gaussian of unit variance (sum of four uniforms)
      positive, negative   its absolute value plus 1/2, with that sign
      signs      +1 or -1
      outliers   normal, and ten times normal for one element in 64
      wide       +-2^e with e uniform in -spread .. spread
      special    the format's own edge: zeros of both signs, subnormals, smallest normals
                 and, up to `spread` times it, the largest finite number
    plants    single elements set last: ((batch, head, position, channel), value);
              one that lies outside the shape is ignored
    """

    pattern: Pattern = "constant"
    level: float = 0.0
    base: float = 0.0
    at: int = 0
    period: int = 1
    noise: Noise = "none"
    spread: float = 0.0
    plants: tuple[Plant, ...] = ()

    def evaluate(
        self,
        shape: tuple[int, int, int, int],
        fmt: Format,
        seed: int,
        *,
        same_batch: bool = False,
        same_head: bool = False,
    ) -> Array:
        """The tensor as float64, each element exactly a finite number of `fmt`.

        `same_batch` and `same_head` repeat the first batch or head, as a stride of 0 does.
        """
        b, h, length, c = (
            np.arange(n, dtype=np.uint64).reshape([-1 if i == axis else 1 for i in range(4)])
            for axis, n in enumerate(shape)
        )
        b, h = (b * np.uint64(0) if same_batch else b), (h * np.uint64(0) if same_head else h)
        level = self._level(shape[2]).reshape(1, 1, -1, 1)
        x = np.broadcast_to(level, shape)
        if self.noise != "none":
            bits = _hash(_hash(_hash(_hash(np.uint64(seed), b), h), length), c)
            x = x + self._noise(bits, fmt)
        x = np.array(fmt.round(np.clip(x, -fmt.max_finite, fmt.max_finite)))
        for (pb, ph, pl, pc), value in self.plants:
            if pb < shape[0] and ph < shape[1] and -shape[2] <= pl < shape[2] and pc < shape[3]:
                where = (
                    slice(None) if same_batch else pb,
                    slice(None) if same_head else ph,
                    pl,
                    pc,
                )
                x[where] = fmt.round(np.clip(value, -fmt.max_finite, fmt.max_finite))
        return x

    def _level(self, length: int) -> Array:
        position = np.arange(length)
        at = self.at + length if self.at < 0 else self.at
        if self.pattern == "spike":
            return np.where(position == at, self.level, self.base)
        if self.pattern == "step":
            return np.where(position >= at, self.level, self.base)
        if self.pattern == "stairs":
            return np.asarray(self.base + self.level * (position // self.period), np.float64)
        if self.pattern == "cycle":
            return np.where(position % self.period == 0, self.level, self.base)
        if self.pattern == "alternate":
            return np.where(position % 2 == 0, self.level, -self.level)
        return np.full(length, self.level)

    def _noise(self, bits: NDArray[np.uint64], fmt: Format) -> Array:
        if self.noise == "wide":
            reach = int(self.spread)
            exponent = (_field(bits, 0) % (2 * reach + 1)) - reach
            return _sign(bits) * np.ldexp(1.0, exponent)
        if self.noise == "signs":
            return self.spread * _sign(bits)
        if self.noise == "special":
            edge = np.array(
                [
                    0.0,
                    -0.0,
                    fmt.min_subnormal,
                    fmt.min_normal - fmt.min_subnormal,
                    fmt.min_normal,
                    fmt.max_finite * min(self.spread, 1.0),
                    1.0,
                    1.0 - fmt.unit_roundoff,
                ]
            )
            return np.asarray(_sign(bits) * edge[_field(bits, 1) % len(edge)], np.float64)
        normal = _normal(bits)
        if self.noise == "normal":
            return self.spread * normal
        if self.noise == "outliers":
            second = _hash(bits, np.uint64(1))
            return self.spread * np.where(_field(second, 3) % 64 == 0, 10 * normal, normal)
        magnitude = self.spread * (np.abs(normal) + 0.5)
        return magnitude if self.noise == "positive" else -magnitude


def shuffled(n: int, seed: int) -> NDArray[np.int64]:
    """0 to n - 1 in an order that depends on the seed; 0 leaves them as they are."""
    places = np.arange(n, dtype=np.uint64)
    return np.argsort(_hash(np.uint64(seed), places), kind="stable") if seed else np.arange(n)


def _hash(
    state: NDArray[np.uint64] | np.uint64, value: NDArray[np.uint64] | np.uint64
) -> NDArray[np.uint64]:
    """One splitmix64 step: advances `state` by 1 + value increments and mixes."""
    with np.errstate(over="ignore"):
        z = np.asarray(state + (value + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15), np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _field(bits: NDArray[np.uint64], index: int) -> NDArray[np.int64]:
    """The 16-bit field number `index` of 64 random bits."""
    return ((bits >> np.uint64(16 * index)) & np.uint64(0xFFFF)).astype(np.int64)


def _sign(bits: NDArray[np.uint64]) -> Array:
    return np.where(bits >> np.uint64(63), -1.0, 1.0)


def _normal(bits: NDArray[np.uint64]) -> Array:
    """Sum of four uniforms, centred, scaled to unit variance: 4 * 65536^2 / 12."""
    total = sum(_field(bits, i) for i in range(4)) - 2 * 65535
    return np.asarray(total * (3.0**0.5 / 65536.0), np.float64)
