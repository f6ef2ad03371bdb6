"""Large: problems beyond the sizes that are drawn, for the longest budgets.

Kernels go wrong where an index leaves 16 bits, where a grid's second axis ends at 65,535 programs,
and where a long loop drifts. Few rows, or short ones, show it: their exact result costs what the
rows cost. `assert_within_bound` judges larger calls of a user's own (benchmarks/large_calls.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from flashcheck.families import filled
from flashcheck.problem import Problem
from flashcheck.strategies import LENGTHS, Space

LONGEST = 131_072
"""Keys of a long context."""

PROGRAMS = 65_535
"""Most programs of a CUDA grid along its second and third axis."""


def large(space: Space, seed: int) -> Iterator[Problem]:
    """A long row, and more heads than a grid's axis takes; none for a kernel that runs small
    problems only, as Triton's interpreter does."""
    if space.max_length < max(LENGTHS) or not space.dense:
        return
    rng = random.Random(seed)
    dim = min(space.head_dims, key=lambda d: (abs(d - 16), d))
    group = 2 if "enable_gqa" in space.options else 1
    plain = Problem(dtype=space.dtype, dim=dim, dim_v=dim, scores="late_max", values="normal")
    shapes = (
        {"heads": group, "kv_heads": 1, "len_q": 2, "len_k": LONGEST + rng.choice((-1, 0, 1))},
        {"batch": PROGRAMS // 8 + 2, "heads": 8, "kv_heads": 8 // group, "len_q": 1, "len_k": 3},
    )
    scale = None if space.scale_none else 0.5
    for shape in shapes:
        data = plain.to_dict() | shape | {"scale": scale, "seed": rng.randrange(space.seeds)}
        problem = Problem.from_dict(data)
        # The last key weighs about as much as all the others of a long row.
        yield filled(problem, 12.0, 0, 1.0, 1.0, rng.randrange(32))
