"""Budget: how much of a run goes to one target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Checks, or seconds, whichever ends first; for one target with all its dtypes.

    complete: checks are added until each property has enough in each dtype to prove something.
    """

    name: str
    checks: int | None
    seconds: float | None
    complete: bool = False

    @property
    def large(self) -> bool:
        """Whether it pays for problems beyond the sizes that are drawn."""
        return (self.checks or 0) >= LARGE_CHECKS

    @staticmethod
    def parse(text: str) -> Budget:
        """smoke, pr, nightly, N checks or Ns seconds. Raises ValueError."""
        if text in PRESETS:
            return PRESETS[text]
        try:
            if text.endswith("s") and float(text[:-1]) > 0:
                return Budget(text, None, float(text[:-1]))
            if int(text) > 0:
                return Budget(text, int(text), None)
        except ValueError:
            pass
        raise ValueError(
            f"budget {text!r} is none of smoke, pr, nightly, a number of checks (500) "
            "or of seconds (30s)"
        )


LARGE_CHECKS = 20_000

PRESETS = {
    "smoke": Budget("smoke", 200, None, complete=True),
    "pr": Budget("pr", 3000, 60.0, complete=True),
    "nightly": Budget("nightly", 100_000, None),
}
