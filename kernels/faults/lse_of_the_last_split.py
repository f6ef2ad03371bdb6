"""Each split stores its lse in the same place: the last one's is returned.

Kind            L
What is wrong   outputs are merged rightly, but lse is that of the last split alone
Where seen      sgl-project/sgl-kernel-xpu#487 (an inactive split overwrites the lse)
Killed by       agreement
Survives        is_causal, which is not split here; up to one split of keys; every test that
                looks at the output alone
"""

from . import by_splits

edits = by_splits(
    """
lse = torch.logsumexp(lses, 0)
weights = torch.exp(lses - lse.masked_fill(lse == -math.inf, 0.0))[..., None]
return (weights * outs).sum(0).to(query.dtype), lses[-1]
""",
)
