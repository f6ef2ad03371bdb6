"""Sample: a few faults, drawn at random, that a run of the gate has to catch besides.

They are injected into flashcheck's own kernels in this process, whatever is gated: what they
measure is the gate, in the dtypes and by the seed of the run.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection

from flashcheck.formats import EVERY
from flashcheck.power.matrix import CONFIDENCE
from flashcheck.power.trial import BUDGET, Trial, in_process, trial
from flashcheck.power.witness import chosen
from flashcheck.probe import probe
from flashcheck.strategies import Space
from flashcheck.worker import InProcess

KERNELS = ("numpy_online", "fp32_stats", "fp32_float8")


def sample(checks: int, seed: int, dtypes: Collection[str], trials: int = 1) -> list[Trial]:
    """At least so many trials, and more while fewer than `checks` checks were spent on them.

    Each fault once, in random order, and then by further seeds.
    """
    rng = random.Random(seed)
    keys = [w.key for w in chosen(KERNELS, dtypes)]
    rng.shuffle(keys)
    spaces: dict[str, dict[str, Space]] = {}
    found: list[Trial] = []
    spent = 0
    for fault, kernel, dtype in itertools.cycle(keys):
        if spent >= checks and len(found) >= trials:
            break
        if kernel not in spaces:
            runner = InProcess(kernel)
            own = {d for _, k, d in keys if k == kernel}
            asked = tuple(d for d in EVERY if d in own)
            spaces[kernel] = probe(runner, runner.start(), asked).spaces
        subject = in_process(kernel, fault, spaces[kernel])[dtype]
        found.append(trial(subject, kernel, fault, rng.randrange(1 << 16), BUDGET // 3))
        spent += found[-1].checks
    return found


def needed(power: float) -> int:
    """Trials, none of which survives, that a lower confidence limit of `power` takes."""
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(power)) if 0 < power < 1 else 1
