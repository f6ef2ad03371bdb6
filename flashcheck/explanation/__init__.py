"""Explanation: what a failure looks like to a person, found by running the kernel again.

`explain` writes the block. `diagnose` says what is wrong with the result, `models` which fault
of the catalogue gives the same one, and so is its likely cause, `contrast` which neighbours of
the problem pass, `hints` what to declare if the kernel is meant to do this; the rest is what
they measure (`weights`) and compare it with.
"""

from __future__ import annotations

from flashcheck.explanation.explain import Explanation as Explanation
from flashcheck.explanation.explain import explain as explain
from flashcheck.explanation.explain import of_a_kind as of_a_kind
