"""Masks: an attention mask from a few parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from flashcheck.fills import Fill
from flashcheck.formats import FORMATS, Array, Bools

Kind = Literal["bool", "additive"]
BiasDtype = Literal["float32", "query"]
Hides = Literal[
    "nothing", "tail", "head", "row", "block", "future", "window", "random", "all", "holes", "dent"
]

HIDES: tuple[Hides, ...] = get_args(Hides)


@dataclass(frozen=True, slots=True)
class Mask:
    """A recipe for attn_mask.

    hides     which keys take no part
      nothing    none
      tail, head the last or first `amount` keys (at most all of them)
      row        every key of query row `amount` (modulo the rows)
      block      the `amount`-th block of 16 keys
      future     keys after the query's own position plus `amount`
      window     keys further than `amount` from the query's position
      random     about half, by a hash
      all        every key of every row
      holes      every third key, from `amount` on
      dent       the future, and key 0 from query 2
    kind      "bool" (True takes part), or "additive" (-inf hides)
    dtype     of an additive mask: "float32", or "query" for the query's own
    bias      finite additive values where nothing is hidden (a Fill over
              [batch, heads, len_k, len_q], transposed)
    rank      4, or 2; 3 and 1 where the kernel takes them
    per_batch, per_head   whether a mask of rank 4 differs over batch and heads
    per_query, per_key    whether it differs over queries and keys; else that axis has size 1,
              and without keys only "row" and "all" hide anything
    """

    kind: Kind = "bool"
    hides: Hides = "nothing"
    amount: int = 0
    dtype: BiasDtype = "float32"
    bias: Fill = Fill()
    rank: int = 4
    per_batch: bool = False
    per_head: bool = False
    per_query: bool = True
    per_key: bool = True

    def evaluate(
        self, batch: int, heads: int, len_q: int, len_k: int, query_dtype: str, seed: int
    ) -> Bools | Array:
        """The mask in the shape in which it is passed: bool, or float64 with -inf."""
        b = batch if self.per_batch and self.rank == 4 else 1
        h = heads if self.per_head and self.rank >= 3 else 1
        rows = len_q if self.per_query and self.rank > 1 else 1
        keys = len_k if self.per_key else min(len_k, 1)
        visible = self._visible(b, h, rows, keys, seed)
        mask: Bools | Array = visible
        if self.kind == "additive":
            fmt = FORMATS[query_dtype if self.dtype == "query" else "float32"]
            bias = self.bias.evaluate((b, h, keys, rows), fmt, seed + 1).swapaxes(2, 3)
            mask = np.where(visible, bias, -np.inf)
        return mask.reshape(mask.shape[4 - self.rank :])

    def _visible(self, b: int, h: int, rows: int, len_k: int, seed: int) -> Bools:
        i = np.arange(rows).reshape(1, 1, -1, 1)
        j = np.arange(len_k).reshape(1, 1, 1, -1)
        # Batches and heads that differ do so by one more hidden key each.
        extra = np.arange(b).reshape(-1, 1, 1, 1) + np.arange(h).reshape(1, -1, 1, 1)
        amount = self.amount + extra
        if not self.per_key and self.hides not in ("row", "all"):
            seen = j >= 0
        elif self.hides == "tail":
            seen = j < len_k - amount
        elif self.hides == "head":
            seen = j >= amount
        elif self.hides == "row":
            seen = (i != amount % max(rows, 1)) & (j >= 0)
        elif self.hides == "block":
            seen = j // 16 != amount
        elif self.hides == "future":
            seen = j <= i + amount
        elif self.hides == "window":
            seen = np.abs(j - i) <= amount
        elif self.hides == "holes":
            seen = j % 3 != amount % 3
        elif self.hides == "dent":
            seen = (j <= i + amount) & ((i != 2) | (j != 0))
        elif self.hides == "random":
            coin = Fill(noise="signs", spread=1.0).evaluate(
                (b, h, rows, len_k), FORMATS["float32"], seed
            )
            seen = coin > 0
        else:
            seen = (j >= 0) & (self.hides == "nothing")
        return np.array(np.broadcast_to(seen, (b, h, rows, len_k)))
