"""Afresh: whether a result that is wrong after other calls is right in a new process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from flashcheck.case import Runner
from flashcheck.causes import Cause
from flashcheck.kernel import TargetError
from flashcheck.law import Subject
from flashcheck.verdict import Verdict
from flashcheck.worker import Worker

SECONDS = 20.0
"""For the new processes of one kernel, at most."""


@dataclass(slots=True)
class Afresh:
    """Checks the causes of a kernel's failures in new processes while there is time."""

    seconds: float = SECONDS

    def passes(self, subject: Subject, cause: Cause) -> bool:
        """Whether a result that is wrong here again is right there; False where that is unknown."""

        def verdict(runner: Runner) -> Verdict:
            own = replace(subject, runner=runner)
            return cause.law.check(own.case(cause.problem, cause.config, cause.captured)).verdict

        known, start = subject.runner, time.monotonic()
        if not isinstance(known, Worker) or cause.check.verdict is not Verdict.VIOLATION:
            return False
        if self.seconds <= 0 or verdict(known) is not Verdict.VIOLATION:
            return False
        try:
            with known.afresh(self.seconds) as other:
                return verdict(other) is Verdict.PASS
        except (TargetError, OSError):  # a machine that has no room for another process
            return False
        finally:
            self.seconds -= time.monotonic() - start
