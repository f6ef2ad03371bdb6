"""Case: one kernel on one problem, with everything that properties share computed once."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from flashcheck import oracle
from flashcheck.bounds import Bound, bound
from flashcheck.call import Call, Reply
from flashcheck.formats import FLOAT8, Array, Bools
from flashcheck.inputs import Inputs
from flashcheck.kernel import Target
from flashcheck.oracle import Value, float64
from flashcheck.problem import Problem
from flashcheck.strategies import Space


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
        return (self.run() if own is None or not own.out_dtype else own).out_dtype

    def value(self) -> Value:
        """The oracle's value for the problem, fine enough to judge the kernel's result."""
        b = self.exact_bound()
        reply = self.run()
        lse = reply.lses[0] if reply.lses else None
        return oracle.evaluate(self.inputs, self.attention(), b.out, b.lse, reply.outs[0], lse)

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
