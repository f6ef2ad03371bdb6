"""Legality: which calls a kernel may be asked, by the kernel contract and by what it takes."""

from __future__ import annotations

from flashcheck.inputs import LENGTHS, Inputs
from flashcheck.kernel import Target
from flashcheck.problem import Problem
from flashcheck.strategies import Space, forms_of

# Ranks 1 and 3 are a kernel's free choice.
_FORMS = frozenset(form for form in Space().mask_forms if form[2] in (2, 4))


def why_not(p: Problem, x: Inputs, space: Space) -> str:
    """Why a kernel of this space is not asked the call, after its name; "" where it may be.

    x: the tensors, those that `p` makes or captured ones of which it is the outline.
    """
    missing = sorted(x.used - space.options)
    return f"does not take {' and '.join(missing)}" if missing else space.why_not(p)


def assumed(target: Target, p: Problem) -> Space:
    """What a kernel takes of calls like this one, as far as its name and declarations say it.

    Where only trying could tell (a page size, a rank of a mask), this call is taken.
    """
    kernel = target.kernel
    return Space(
        dtype=p.dtype, options=frozenset({*target.options, *target.required}), head_dims=(p.dim,),
        mask_forms=_FORMS | forms_of(p), positive_scale=kernel.positive_scale,
        aligned=kernel.causal_alignment == "bottom_right", descale_block=kernel.descale_block,
        pages=(p.page,) if p.page else (),
    )  # fmt: skip


def takes_less(tried: Space, than: Space, p: Problem) -> bool:
    """Whether a kernel that was tried takes less than was assumed, of what laws make of `p`."""
    return bool(tried.why_not(p)) or not (
        than.options <= tried.options
        and than.mask_forms <= tried.mask_forms
        and than.dense <= tried.dense
        and than.empty_keys <= tried.empty_keys
    )


def must_be_tried(target: Target) -> bool:
    """Whether only a call can tell if plain calls are taken: lengths have no default."""
    return not {*LENGTHS}.isdisjoint(target.required)
