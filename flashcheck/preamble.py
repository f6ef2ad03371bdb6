"""Preamble: the statements of a script that import a kernel, as flashcheck would.

They name the kernel `attention`, and `kernel` where its configurations are needed too.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from flashcheck.kernel import Target

_OUTSIDE = ("torch", "flashcheck")
"""Packages that are installed wherever the script can run."""

_REGISTERED = re.compile(r"(\w+)(?:\[([^\[\]]*)\])?")


def environment(target: Target, device: str) -> list[str]:
    """What has to be set before anything is imported."""
    if not (target.interpreted and device == "cpu"):
        return []
    return [
        "# Triton's own interpreter. flashcheck's computes bfloat16, float8 and TF32 as the",
        "# hardware does, so that the numbers may differ in those.",
        'os.environ["TRITON_INTERPRET"] = "1"',
    ]


def kernel(target: Target, device: str) -> list[str]:
    """Statements that import torch and the kernel, as `attention`."""
    torch = ["import torch"]
    if device == "cpu":
        torch += ["", "torch.set_num_threads(1)  # as flashcheck runs it"]
    left, colon, attribute = target.spec.rpartition(":")
    if not colon:
        return [*torch[:1], *_registered(target), *torch[1:]]
    first, *rest = attribute.split(".")
    if left.endswith(".py") or "/" in left:
        path = Path(left)
        folder, name = str(path.parent), path.stem
        plain = name.isidentifier() and name not in sys.stdlib_module_names
    else:
        folder, name, plain = ".", left, True
    lines = []
    if name.split(".")[0] not in _OUTSIDE:
        lines.append(f"sys.path.insert(0, {quoted(folder)})  # where the kernel is")
    if plain:
        lines.append(f"from {name} import {first}")
    else:
        lines.append(f"{first} = runpy.run_path({quoted(left)})[{quoted(first)}]")
    if named := _named(target, ".".join([first, *rest])):
        lines += ["", *named]
    return [*torch[:1], "", *lines, *torch[1:]]


def _registered(target: Target) -> list[str]:
    match = _REGISTERED.fullmatch(target.spec)
    if match is None:
        return [
            "from flashcheck.loading import load",
            "",
            "# The fault is injected as the kernel is loaded, which flashcheck alone can do.",
            f"kernel = load({quoted(target.spec)})[0]",
            *_named(target, "kernel"),
        ]
    name, variant = match.groups()
    if variant is None:
        return [f"from flashcheck.kernels.{name} import kernel", "", *_named(target, "kernel")]
    return [
        f"from flashcheck.kernels.{name} import variants",
        "",
        f"kernel = variants[{quoted(variant)}]",
        *_named(target, "kernel"),
    ]


def _named(target: Target, name: str) -> list[str]:
    """The kernel as `attention`, and as `kernel` where it has configurations."""
    lines = [] if name == "kernel" or target.configs == (None,) else [f"kernel = {name}"]
    what = f"{name}.fn" if target.wrapped else name
    if what != "attention":
        lines.append(f"attention = {what}")
    return lines


def differentiate(target: Target, output: str) -> str:
    """The function that gives the gradient `output`: dq, dk or dv of sum(out * grad_out)."""
    turn = ".transpose(1, 2)" if target.kernel.layout == "bshd" else ""
    return f"""\
def differentiate(q, k, v, grad_out, wrt="qkv", passes=1, **options):
    leaves = [t.detach().requires_grad_(name in wrt) for name, t in zip("qkv", (q, k, v))]
    result = attention(*(t{turn} for t in leaves), **options)
    out = result[0] if isinstance(result, (tuple, list)) else result
    wanted = [t for t in leaves if t.requires_grad]
    for n in range(passes, 0, -1):
        gradients = torch.autograd.grad(out, wanted, grad_out{turn}, retain_graph=n > 1)
    return dict(zip(wrt, gradients))["{output[1]}"].double()"""


def run(target: Target, output: str, paged: bool) -> str:
    """The function that calls the kernel and gives `output`, out or lse, in float64.

    paged: whether k and v of some calls are pools of pages, which look the same for all kernels.
    """
    lines = ["def run(q, k, v, **options):"]
    bshd = target.kernel.layout == "bshd"
    if bshd and paged:
        lines.append("    q = q.transpose(1, 2)  # [B, L, H, D]")
        lines.append('    if "block_table" not in options:')
        lines.append("        k, v = k.transpose(1, 2), v.transpose(1, 2)")
    elif bshd:
        lines.append("    q, k, v = (t.transpose(1, 2) for t in (q, k, v))  # [B, L, H, D]")
    lines.append("    result = attention(q, k, v, **options)")
    if output == "lse":
        base = " * math.log(2)" if target.kernel.lse_base == "2" else ""
        return "\n".join([*lines, f"    return result[1].detach().double(){base}"])
    lines.append("    out = result[0] if isinstance(result, (tuple, list)) else result")
    back = ".transpose(1, 2)" if bshd else ""
    return "\n".join([*lines, f"    return out{back}.detach().double()"])


def quoted(text: str) -> str:
    """A string as Python source, in double quotes."""
    return json.dumps(text)
