"""Clock: how long an explanation may look for its cause."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Asked, whether `seconds` of this process, or `wall` seconds by the clock, are spent.

    Those of a busy machine count less.
    """

    def __init__(self, seconds: float, wall: float) -> None:
        self.own, self.wall = time.process_time() + seconds, time.monotonic() + wall

    def __call__(self) -> bool:
        return time.process_time() > self.own or time.monotonic() > self.wall

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What is done meanwhile does not count."""
        own, wall = time.process_time(), time.monotonic()
        yield
        self.own += time.process_time() - own
        self.wall += time.monotonic() - wall
