"""Case: one kernel on one problem, with everything that properties share computed once."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import numpy as np

from flashcheck import grad_out, oracle
from flashcheck.bounds import Bound, bound
from flashcheck.bounds.backward import GradientBound, gradient_bound
from flashcheck.call import Call, Reply
from flashcheck.formats import FLOAT8, FLOAT8_OUTPUTS, Array, Bools
from flashcheck.grad_out import WRT, GradLayout, GradOut, Wrt
from flashcheck.inputs import Inputs
from flashcheck.kernel import Target
from flashcheck.oracle import Value, float64
from flashcheck.oracle.backward import Gradients
from flashcheck.oracle.backward import gradients as exact_gradients
from flashcheck.oracle.backward.float64 import Backward
from flashcheck.oracle.backward.float64 import backward as float64_backward
from flashcheck.problem import Problem, elements
from flashcheck.strategies import Space

DIFFERENTIABLE = frozenset({
    "scale", "is_causal", "attn_mask", "enable_gqa", "window_size", "softcap", "alibi_slopes",
    "sinks", "num_splits",
})  # fmt: skip
"""Options beside which gradients are checked."""

MOST_EXACT = 4_000
"""Multiply-adds of q.k and P.v up to which gradients are computed in multiple precision: 0.3 s."""


class Runner(Protocol):
    """Runs a kernel: a worker process, or this process."""

    def submit(self, call: Call) -> None: ...

    def result(self) -> Reply: ...


class BadReply(Exception):
    """The kernel gave no usable result."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        super().__init__(reply.status)


class Case:
    """One kernel on one problem, or on captured `inputs`, of which `problem` is the outline.

    Properties derive further inputs from `inputs` and ask for the kernel's result, the exact
    value and the bound of each; every answer is computed once.

    Errors: NotImplementedError for inputs with an option that no kernel is passed yet.
    """

    def __init__(
        self,
        runner: Runner,
        target: Target,
        problem: Problem,
        config: str | None = None,
        device: str = "cpu",
        space: Space | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        self.runner = runner
        self.target = target
        self.problem = problem
        self.config = config
        self.device = device
        self.space = Space() if space is None else space
        self.kernel = target.kernel
        self.captured = inputs
        x = problem.inputs() if inputs is None else inputs
        if self.kernel.causal_alignment == "bottom_right":
            x = x.with_(bottom_right=True)
        x.options()  # refuses what no call would pass
        self.inputs: Inputs = x
        # Keyed by identity; the inputs themselves are kept so that no identity is reused.
        self._kept: dict[int, Inputs] = {}
        self._attention: dict[int, float64.Attention] = {}
        self._bounds: dict[tuple[int, str | None], Bound] = {}
        self._replies: dict[tuple[int, tuple[tuple[str, Any], ...]], Reply] = {}
        self._grad_outs: dict[int, Array] = {}
        self._gradients: dict[tuple[int, int, tuple[tuple[str, Any], ...]], Reply] = {}
        self._backwards: dict[tuple[int, int], Backward] = {}
        self._gradient_bounds: dict[tuple[int, int], GradientBound] = {}

    def start(self) -> None:
        """Have the kernel work on the problem while this process computes the bound."""
        self.runner.submit(Call(self.inputs, self.config))
        if self.inputs.dtype not in FLOAT8:  # there it depends on what the kernel returns
            self.exact_bound()
        self._store(self.inputs, {}, self.runner.result())

    def run(self, x: Inputs | None = None, **how: Any) -> Reply:
        """The kernel's reply for inputs `x`. Raises BadReply unless there is a usable result."""
        x = self.inputs if x is None else x
        reply = self._replies.get((id(x), tuple(sorted(how.items()))))
        if reply is None:
            self.runner.submit(Call(x, self.config, **how))
            reply = self._store(x, how, self.runner.result())
        if reply.status != "ok" or reply.problem_with_output:
            raise BadReply(reply)
        return reply

    def out(self, x: Inputs | None = None, **how: Any) -> Array:
        return self.run(x, **how).outs[0]

    def lse(self, x: Inputs | None = None, **how: Any) -> Array | None:
        reply = self.run(x, **how)
        return reply.lses[0] if reply.lses else None

    def attention(self, x: Inputs | None = None) -> float64.Attention:
        x = self.inputs if x is None else x
        if id(x) not in self._attention:
            self._kept[id(x)] = x
            self._attention[id(x)] = float64.attention(x)
        return self._attention[id(x)]

    def exact_bound(self, x: Inputs | None = None) -> Bound:
        x = self.inputs if x is None else x
        key = id(x), self._out_dtype(x)
        if key not in self._bounds:
            at = self.attention(x)
            self._bounds[key] = bound(x, at, self.kernel.contract, self.device, key[1])
        return self._bounds[key]

    def _out_dtype(self, x: Inputs) -> str | None:
        """The dtype of what a float8 kernel returned for `x`, or else for the problem."""
        if x.dtype not in FLOAT8:
            return None
        own = self._replies.get((id(x), ()))
        found = (self.run() if own is None or not own.out_dtype else own).out_dtype
        return found if found in FLOAT8_OUTPUTS else None  # another is a fault of the output's form

    def value(self) -> Value:
        """The oracle's value for the problem, fine enough to judge the kernel's result."""
        b = self.exact_bound()
        reply = self.run()
        lse = reply.lses[0] if reply.lses else None
        return oracle.evaluate(self.inputs, self.attention(), b.out, b.lse, reply.outs[0], lse)

    # -- gradients: of sum(out * dout), dout [B, Hq, Lq, Dv], for inputs `x` ----------------

    @property
    def has_gradients(self) -> bool:
        """Whether gradients are to be checked, and something is promised about them."""
        x = self.inputs
        if not self.space.backward or x.dtype in FLOAT8 or not x.used <= DIFFERENTIABLE:
            return False
        return self.kernel.masked_rows == "zero" or bool(self.attention().seen.all())

    @cached_property
    def dout(self) -> Array:
        """The gradient of out that goes with the problem, [B, Hq, Lq, Dv]."""
        x = self.inputs
        shape = (*x.q.shape[:3], x.v.shape[3])
        return grad_out.evaluate(self.problem.seed, x.dtype, shape)

    def differentiate(
        self,
        dout: Array,
        x: Inputs | None = None,
        *,
        wrt: tuple[Wrt, ...] = WRT,
        layout: GradLayout = "contiguous",
        passes: int = 1,
        **how: Any,
    ) -> Reply:
        """The reply with the kernel's gradients. Raises BadReply unless there are usable ones."""
        x = self.inputs if x is None else x
        asked = ("wrt", wrt), ("layout", layout), ("passes", passes), *sorted(how.items())
        key = id(x), id(dout), asked
        if key not in self._gradients:
            self._kept[id(x)], self._grad_outs[id(dout)] = x, dout
            self.runner.submit(
                Call(x, self.config, grad_out=GradOut(dout, wrt, layout, passes), **how)
            )  # fmt: skip
            self._gradients[key] = self.runner.result()
        reply = self._gradients[key]
        if reply.status != "ok" or reply.problem_with_output:
            raise BadReply(reply)
        return reply

    def gradient_bound(self, dout: Array, x: Inputs | None = None) -> GradientBound:
        x = self.inputs if x is None else x
        key = id(x), id(dout)
        if key not in self._gradient_bounds:
            self._gradient_bounds[key] = gradient_bound(
                x, dout, self.attention(x), self.backward(dout, x), self.exact_bound(x),
                self.kernel.contract, self.device,
            )  # fmt: skip
        return self._gradient_bounds[key]

    def exact_gradients(self) -> Gradients:
        """The oracle's gradients of the problem, fine enough to judge the kernel's.

        Where multiple precision would take seconds they are those of float64, with its radius.
        """
        back = self.backward(self.dout)
        if elements(self.problem) > MOST_EXACT:
            return exact_gradients(self.inputs, self.dout, back)
        b, reply = self.gradient_bound(self.dout), self.differentiate(self.dout)
        got = reply.gradients["dq"], reply.gradients["dk"], reply.gradients["dv"]
        return exact_gradients(self.inputs, self.dout, back, (b.dq, b.dk, b.dv), got)

    def backward(self, dout: Array, x: Inputs | None = None) -> Backward:
        x = self.inputs if x is None else x
        key = id(x), id(dout)
        if key not in self._backwards:
            self._kept[id(x)], self._grad_outs[id(dout)] = x, dout
            self._backwards[key] = float64_backward(x, dout, self.attention(x))
        return self._backwards[key]

    def leeway(self, output: str) -> Array | None:
        """By how much two equal calls may differ: None, not at all, if deterministic."""
        if self.kernel.deterministic:
            return None
        bound = self.exact_bound()
        return 2 * (bound.out if output == "out" else bound.lse)

    def judged_rows(self, x: Inputs | None = None) -> Bools:
        """[B, Hq, Lq]: rows about which the kernel's contract says something.

        Only rows that see no key can be left out, by masked_rows="nan" or "unspecified".
        """
        seen = self.attention(x).seen
        return seen if self.kernel.masked_rows != "zero" else np.ones_like(seen)

    def _store(self, x: Inputs, how: dict[str, Any], reply: Reply) -> Reply:
        self._kept[id(x)] = x
        self._replies[(id(x), tuple(sorted(how.items())))] = reply
        return reply
