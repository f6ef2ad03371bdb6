"""The derivation's claims, by topic: all that can be measured without a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from flashcheck.claims.backward import fewer_bytes, more_flops, one_scalar, run
from flashcheck.claims.claim import Claim
from flashcheck.claims.exactness import (
    empty_splits,
    exact_in_rationals,
    float16_overflow,
    large_scores_error,
    ordinary_error,
    splits_merge,
    unshifted_is_nan,
)
from flashcheck.claims.mistakes import acc_not_rescaled, zero_start
from flashcheck.claims.signed_bias import repeated_maximum
from flashcheck.claims.sizes import (
    bound_by_bytes,
    matrix_per_head,
    matrix_per_layer,
    ridge,
    score_time,
    short_sequences,
    softmax_intensity,
)
from flashcheck.claims.traffic import (
    Counts,
    bytes_ratio,
    causal_skip,
    naive_law,
    never_stored,
    same_products,
    score_passes,
    tiled_law,
)

NOT_MEASURED = (
    "wall time follows bytes, and launches dominate short sequences: needs a GPU",
    "one block of queries and one of keys fit in shared memory: needs a compiled kernel",
    "what FlashAttention-2, 3 and 4 changed, how well decoding fills a GPU: needs them and a GPU",
)
"""Claims that are left out, and what they would need."""


def measure() -> Iterator[Claim]:
    """Each claim as it is measured, topic by topic; about 20 seconds on one core."""
    yield exact_in_rationals()
    yield ordinary_error()
    yield large_scores_error()
    yield unshifted_is_nan()
    yield float16_overflow()
    yield splits_merge()
    yield empty_splits()
    counts = Counts()
    yield matrix_per_head()
    yield matrix_per_layer()
    yield score_time(counts)
    yield ridge()
    yield softmax_intensity()
    yield bound_by_bytes()
    yield short_sequences()
    yield score_passes(counts)
    yield never_stored(counts)
    yield naive_law(counts)
    yield tiled_law(counts)
    yield same_products(counts)
    yield bytes_ratio(counts)
    yield causal_skip()
    passes = run()
    yield one_scalar(passes)
    yield more_flops(passes)
    yield fewer_bytes(passes)
    yield zero_start(dtype="float32")
    yield zero_start(dtype="float64")
    yield acc_not_rescaled()
    yield from repeated_maximum()
