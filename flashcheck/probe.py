"""Probe: what a kernel takes, found by one benign problem for each dtype, option and size.

An ordinary exception here means that the kernel does not support the feature; it is listed
in the report. The same exception later, on a problem made of accepted features, is a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flashcheck.bounds import arithmetic
from flashcheck.call import Call, Reply
from flashcheck.case import Runner
from flashcheck.fills import Fill
from flashcheck.formats import EVERY, FLOAT8
from flashcheck.grad_out import GradOut, evaluate
from flashcheck.inputs import DESCALES
from flashcheck.kernel import COMPANIONS, OPTIONS, Target
from flashcheck.masks import Mask
from flashcheck.problem import Problem
from flashcheck.sequences import PAGES
from flashcheck.strategies import HEAD_DIMS, MASK_FORMS, WORK, Space

INTERPRETED_LENGTH = 97
"""Longest sequence for a kernel in Triton's interpreter: three blocks of 32 and one key."""

INTERPRETED_HEADS = 8
"""Most batch x heads there: with fewer, no wrong map of groups or batches could be seen."""

PAGE_SIZES = tuple(sorted({*PAGES} - {0}))
"""Page sizes that are tried."""

MOST_LOST = 1
"""Processes that probing may lose before it takes the rest for supported."""

USUAL = ("float32", "float16", "bfloat16")
"""What is gated when neither the user nor the kernel names dtypes."""


@dataclass(frozen=True, slots=True)
class Probed:
    """What probing found: a space for each dtype that works, and what is not tested.

    refused: (dtype, message) of the dtypes that do not work; untested: sentences for the
    first lines of the report.
    """

    spaces: dict[str, Space]
    refused: tuple[tuple[str, str], ...]
    untested: tuple[str, ...]
    returns_lse: bool


_NORMAL = Fill(noise="normal", spread=1.0)
_BENIGN = Problem(heads=2, kv_heads=2, len_q=16, len_k=16, q=_NORMAL, k=_NORMAL, v=_NORMAL)
_PACKED = replace(_BENIGN, seqlens_q=(10, 6), seqlens_k=(10, 6))
_PAGED = replace(_BENIGN, len_q=1, seqlens_k=(11,), page=16, spare=1)


class _Prober:
    def __init__(self, runner: Runner, target: Target) -> None:
        self.runner = runner
        self.target = target
        self.messages: dict[str, list[str]] = {}
        self.latest = ""
        self.lse = False
        self.lost = 0
        self.backward: dict[str, str] = {}

    def differentiates(self, problem: Problem) -> bool:
        """Whether the kernel brings a backward that works; what is found is noted by dtype."""
        if self.target.kernel.backward is False or problem.dtype in FLOAT8:
            return False
        x = problem.inputs()
        values = evaluate(problem.seed, problem.dtype, (*x.q.shape[:3], x.v.shape[3]))
        self.runner.submit(Call(x, self.target.configs[0], grad_out=GradOut(values)))
        reply = self.runner.result()
        self.lost += reply.status in ("died", "timeout")
        failed = reply.status in ("error", "unsupported")
        self.backward[problem.dtype] = _message(reply) if failed else ""
        return not failed

    def takes(
        self, problem: Problem, feature: str | None, *, passed: str = "", errors: bool = True
    ) -> bool:
        """Whether the kernel takes the problem; a refusal is noted under `feature`.

        `passed` names an option to pass at its neutral value; `errors` says whether an
        ordinary exception is a refusal.
        """
        if self.lost >= MOST_LOST:
            return True
        x = problem.inputs()
        if passed:
            x = x.with_(passed=frozenset({passed}))
        self.runner.submit(Call(x, self.target.configs[0]))
        reply = self.runner.result()
        self.lse = self.lse or bool(reply.lses)
        # A crash or a hang is no refusal: the search will tell of it. Enough is enough, since
        # each costs a process.
        self.lost += reply.status in ("died", "timeout")
        if reply.status == "unsupported" or (errors and reply.status == "error"):
            self.latest = _message(reply)
            if feature is not None:
                self.messages.setdefault(self.latest, []).append(feature)
            return False
        return True


def probe(runner: Runner, target: Target, dtypes: tuple[str, ...] | None = None) -> Probed:
    """Try the kernel on one benign problem for each feature, in each of `dtypes` (None: all)."""
    prober = _Prober(runner, target)
    declared = target.kernel.dtypes
    spaces: dict[str, Space] = {}
    refused: list[tuple[str, str]] = []
    wanted = dtypes or (USUAL if declared is None else tuple(d for d in EVERY if d in declared))
    for dtype in dict.fromkeys((*wanted, "float64")):
        # A kernel that takes float64 often computes in float32 all the same, which breaks the
        # contract; so float64 is gated where it is asked for, declared, or all there is.
        if dtype not in wanted and (dtypes or declared is not None or spaces):
            continue
        if declared is not None and dtype not in declared:
            refused.append((dtype, "the kernel does not declare it"))
            continue
        space, message = _space(prober, dtype)
        if space is None:
            refused.append((dtype, message))
        else:
            spaces[dtype] = space
    untested = _untested(prober, spaces, refused)
    untried = [d for d in EVERY if d not in USUAL and d not in spaces]
    if dtypes is None and declared is None and untried:
        untested.append(
            f"{', '.join(untried)}: neither asked for (--dtype) nor declared (Kernel(dtypes=))"
        )
    return Probed(spaces, tuple(refused), tuple(untested), prober.lse)


def probe_like(runner: Runner, target: Target, p: Problem) -> Space | None:
    """What the kernel takes with the dtype, the head size and the page size of one problem.

    None where it takes no such calls at all.
    """
    narrow = replace(target, kernel=replace(target.kernel, head_dims=(p.dim,)))
    space, _ = _space(_Prober(runner, narrow), p.dtype, (p.page,) if p.page else ())
    return space


def _space(
    prober: _Prober, dtype: str, pages: tuple[int, ...] = PAGE_SIZES
) -> tuple[Space | None, str]:
    """The space of one dtype, or None and the message with which it was refused."""
    kernel, options = prober.target.kernel, prober.target.options
    interpreted = prober.target.interpreted
    try:
        arithmetic(kernel.contract, dtype)
    except ValueError as error:
        return None, f"its contract: {error}"
    known = tuple(kernel.head_dims) if kernel.head_dims is not None else None
    candidates = known or (64, *HEAD_DIMS)
    calls = [_BENIGN]
    calls += [_PACKED] if "cu_seqlens_q" in options else []
    calls += [_PAGED] if "block_table" in options else []
    attempts = (replace(p, dtype=dtype, dim=d, dim_v=d) for p in calls for d in candidates)
    base = next((p for p in attempts if prober.takes(p, f"{dtype}")), None)
    if base is None:
        _forget(prober, dtype)
        return None, prober.latest or "no head size works"
    _forget(prober, dtype)
    dims = [
        d
        for d in (known or HEAD_DIMS)
        if prober.takes(
            replace(base, dim=d, dim_v=d), f"{dtype} head size {d}" if known is None else None
        )
    ]
    other = 8 if base.dim != 8 else 4
    differs = prober.takes(replace(base, dim_v=other), f"{dtype} Dv != D")
    found = {
        option
        for option, problem in (
            ("scale", replace(base, scale=0.5)),
            ("is_causal", replace(base, is_causal=True)),
            ("enable_gqa", replace(base, kv_heads=1)),
            ("window_size", replace(base, window=(3, 2))),
            ("softcap", replace(base, softcap=30.0)),
            ("alibi_slopes", replace(base, alibi_slopes=Fill(level=0.5))),
            ("sinks", replace(base, sinks=Fill())),
            ("num_splits", replace(base, num_splits=2)),
            ("cu_seqlens_q", _in_form(_PACKED, base)),
            *((f"{of}_descale", _scaled(base, of)) for of in ("qkv" if dtype in FLOAT8 else "")),
        )
        if option in options and prober.takes(problem, f"{dtype} {option}")
    }
    scale_none = "scale" not in found or prober.takes(base, f"{dtype} scale=None", passed="scale")
    forms: set[tuple[str, str, int]] = set()
    dense = not base.seqlens_k
    if "attn_mask" in options and dense:
        for kind, mask_dtype, rank in sorted({f[:3] for f in MASK_FORMS}, reverse=True):
            if mask_dtype == "query" and dtype == "float8_e4m3fn":
                continue  # which has no -inf to hide a key with
            mask = Mask(kind=kind, dtype=mask_dtype, rank=rank, hides="tail", amount=3)
            # Ranks 1 and 3 are a kernel's free choice, so that a refusal is no news.
            name = f"{dtype} {kind} {mask_dtype} mask of rank {rank}" if rank in (2, 4) else None
            if prober.takes(replace(base, mask=mask), name):
                forms.add((kind, mask_dtype, rank))
    if forms:
        found.add("attn_mask")
    longest = INTERPRETED_LENGTH if interpreted else 513
    taken = tuple(
        size
        for size in (pages if "block_table" in options else ())
        if size <= longest and prober.takes(_with_pages(base, size), f"{dtype} pages of {size}")
    )
    if taken:
        found.add("block_table")
    found |= {more for o in found for more in COMPANIONS.get(o, ()) if more in options}
    # No keys at all are legal: only NotImplementedError can refuse them.
    none = replace(base, len_k=0 if not base.page else 16, seqlens_k=(0,) * len(base.seqlens_k))
    empty = prober.takes(none, f"{dtype} Lk = 0", errors=False)
    space = Space(
        dtype=dtype,
        options=frozenset(found),
        head_dims=tuple(dims) or (base.dim,),
        dim_v_differs=differs,
        mask_forms=frozenset(forms),
        positive_scale=kernel.positive_scale,
        scale_none=scale_none,
        backward=prober.lost < MOST_LOST and prober.differentiates(base),
        empty_keys=empty,
        dense=dense,
        descale_block=kernel.descale_block,
        pages=taken,
        aligned=kernel.causal_alignment == "bottom_right",
        # The double-double oracle is slower, and Triton's interpreter by far.
        work=60_000 if interpreted else WORK // 4 if dtype == "float64" else WORK,
        max_length=longest,
        max_heads=INTERPRETED_HEADS if interpreted else 256,
    )
    return space, ""


def _scaled(base: Problem, of: str) -> Problem:
    changes: dict[str, Any] = {f"{of}_descale": Fill(level=0.5)}
    return replace(base, **changes)


def _in_form(form: Problem, base: Problem) -> Problem:
    return replace(form, dtype=base.dtype, dim=base.dim, dim_v=base.dim_v)


def _with_pages(base: Problem, size: int) -> Problem:
    keys = -(-16 // size) * size
    return replace(_in_form(_PAGED, base), page=size, len_k=keys)


def _forget(prober: _Prober, dtype: str) -> None:
    """Drop what was noted while a first head size was sought."""
    for message, features in list(prober.messages.items()):
        features[:] = [f for f in features if f != dtype]
        if not features:
            del prober.messages[message]


def _message(reply: Reply) -> str:
    return f"{reply.exception}: {reply.message}" if reply.exception else reply.message


def _untested(
    prober: _Prober, spaces: dict[str, Space], refused: list[tuple[str, str]]
) -> list[str]:
    target = prober.target
    lines = []
    if target.hidden:
        lines.append(
            "every option: the signature hides them, so only the plain form query, key, value is "
            f"called; declare them with flashcheck.Kernel(fn, options={OPTIONS[:2]!r}, ...)"
        )
    else:
        # Of options that are passed together, the first stands for all.
        others = [more for with_it in COMPANIONS.values() for more in with_it]
        others += DESCALES if not {*FLOAT8} & {*spaces} else ()
        missing = [o for o in OPTIONS if o not in target.options and o not in others]
        if missing:
            lines.append(f"{', '.join(missing)}: the signature does not name them")
    lines += [f"{dtype}: refused ({message})" for dtype, message in refused]
    for message, features in prober.messages.items():
        lines.append(f"{_join(features)}: refused ({message})")
    taken = {option for space in spaces.values() for option in space.options}
    sequences = [option for option in COMPANIONS if option in taken]
    if "attn_mask" in taken and sequences:
        lines.append(
            f"attn_mask together with {' or '.join(sequences)}: flashcheck makes no such calls"
        )
    if spaces and not prober.lse:
        lines.append(
            "lse: it is not returned, which hides faults that only the lse shows (a normalizer "
            "summed from rounded P, the wrong base of the logarithm)"
        )
    if target.interpreted:
        lines.append(
            f"sequences longer than {INTERPRETED_LENGTH} (but one) and more than "
            f"{INTERPRETED_HEADS} heads: "
            "Triton's interpreter is slow; gate it on a GPU with --device cuda"
        )
    if target.note is not None:
        lines.append(target.note)
    lines += _backward(prober, sequences)
    return lines


def _backward(prober: _Prober, sequences: list[str]) -> list[str]:
    """What of the backward is not tested. `sequences`: the options that it takes for them."""
    if prober.target.kernel.backward is False:
        return ["backward: the kernel declares backward=False"]
    found = prober.backward
    dtypes: dict[str, list[str]] = {}
    for dtype, message in found.items():
        dtypes.setdefault(message, []).append(dtype)
    if not dtypes:
        return ["backward: no dtype was tried that it is tested in"]
    lines = []
    if "" in dtypes:
        beside = f", and all beside {' or '.join(sequences)}" if sequences else ""
        lines.append(
            f"backward: gradients through lse, and those of anything but q, k and v{beside}"
        )
    for message, names in dtypes.items():
        where = "" if len(names) == len(found) else f" in {', '.join(names)}"
        kind, _, rest = message.partition(": ")
        if kind == "Detached":
            lines.append(f"backward{where}: the kernel brings none")
        elif kind == "Traced":
            lines.append(
                f"backward{where}: the kernel brings none of its own ({rest}); declare "
                "flashcheck.Kernel(fn, backward=True) to have autograd's gated"
            )
        elif message:
            lines.append(f"backward{where}: refused ({message})")
    return lines


def _join(features: list[str]) -> str:
    """Features, those that differ only in their dtype or in their last word put together."""
    by_tail: dict[str, list[str]] = {}
    for feature in features:
        dtype, _, rest = feature.partition(" ")
        by_tail.setdefault(rest, []).append(dtype)
    by_dtypes: dict[str, list[str]] = {}
    for rest, dtypes in by_tail.items():
        by_dtypes.setdefault(", ".join(dtypes), []).append(rest)
    parts = []
    for dtypes_text, rests in by_dtypes.items():
        sizes = [r.removeprefix("head size ") for r in rests if r.startswith("head size ")]
        others = [r for r in rests if not r.startswith("head size ")]
        if sizes:
            others.insert(0, f"head size {', '.join(sizes)}")
        parts.append(f"{', '.join(others)} in {dtypes_text}")
    return "; ".join(parts)
