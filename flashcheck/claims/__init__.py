"""Claims: what a derivation of online softmax says in numbers, measured again."""

from __future__ import annotations

from flashcheck.claims.claim import Claim as Claim
from flashcheck.claims.claim import Finding as Finding
from flashcheck.claims.derivation import NOT_MEASURED as NOT_MEASURED
from flashcheck.claims.derivation import measure as measure
