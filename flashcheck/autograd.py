"""Autograd: a kernel's gradients by its own backward, and whose backward that is."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

from flashcheck.grad_out import Wrt

_SEEN_THROUGH = re.compile(
    r"(AsStrided|View|UnsafeView|ReshapeAlias|ViewAsReal|Transpose|Permute|T|MT|Slice|Select|"
    r"Narrow|Squeeze|Unsqueeze|Expand|Alias|ToCopy|Clone|Contiguous|Unbind|Split|SplitWithSizes|"
    r"Movedim)Backward\d*"
)
"""Views and casts: what a kernel puts around the result of its own node."""

_ATTENTION = re.compile(r"\w*Attention\w*Backward\d*")
"""torch's own nodes: ScaledDotProductFlashAttentionForCpuBackward0 and its like."""


class Traced(NotImplementedError):
    """autograd traced the forward through elementary operations: nobody wrote a backward."""


class Detached(RuntimeError):
    """The output does not depend on the inputs, as far as autograd knows."""


def written(out: torch.Tensor) -> tuple[str, bool]:
    """The node that `out` is differentiated by, and whether somebody wrote its backward.

    Views and casts are seen through. The node of a torch.autograd.Function and torch's own
    attention have a backward that somebody wrote; a forward that autograd traced, or that
    torch.compile did, has none.
    """
    node: Any = out.grad_fn
    while node is not None and _SEEN_THROUGH.fullmatch(node.name()):
        node = next((n for n, _ in node.next_functions if n is not None), None)
    if node is None:
        return "", False
    name = str(node.name())
    compiled = name.startswith("CompiledFunction")
    own = isinstance(node, BackwardCFunction) and not compiled
    return name, own or _ATTENTION.fullmatch(name) is not None


def gradients(
    out: torch.Tensor, leaves: dict[Wrt, torch.Tensor], grad_out: torch.Tensor, passes: int = 1
) -> dict[str, torch.Tensor | None]:
    """dq, dk and dv of sum(out * grad_out), for the leaves at hand; None where none came.

    passes: how often the backward is run; the gradients are those of the last time.
    Errors: whatever the kernel's backward raises; NotImplementedError where only the graph's
    being kept, or a further pass, makes it raise, as compiled code that reuses its buffers does.
    """
    wanted = list(leaves.values())
    try:
        for _ in range(passes - 1):
            torch.autograd.grad(out, wanted, grad_out, allow_unused=True, retain_graph=True)
        found = torch.autograd.grad(out, wanted, grad_out, allow_unused=True)
    except RuntimeError as error:
        if passes == 1:
            raise
        raise NotImplementedError(f"a second backward of one graph: {error}") from error
    return {f"d{name}": gradient for name, gradient in zip(leaves, found, strict=True)}
