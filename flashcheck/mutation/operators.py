"""Operators: each turns one node of a kernel into what its author could have written by mistake.

An operator is a generator `(source, node) -> Edit | None`; None where a token was not found. Its
name, in words, says what the edit does. They copy the bugs that attention kernels have shipped
with: a factor that is forgotten, a bound that is off by one, a mask or a cast that is missing,
the wrong one of two names that look alike.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator

from flashcheck.mutation.names import alike, similar
from flashcheck.mutation.source import Edit, Source

Edits = Iterator[Edit | None]
Operator = Callable[[Source, ast.AST], Edits]

_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_COMPARISON: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_NAMES: dict[str, str] = {
    "exp": "exp2", "exp2": "exp", "log": "log2", "log2": "log",
    "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum",
    "amax": "amin", "amin": "amax", "fmax": "fmin", "fmin": "fmax",
    "zeros": "ones", "zeros_like": "ones_like", "ones": "zeros", "ones_like": "zeros_like",
}  # fmt: skip
_CASTS = frozenset({"to", "float", "double", "half", "bfloat16", "astype"})
_GUARDS = frozenset(
    {"clamp", "clamp_min", "clamp_max", "contiguous", "abs", "nan_to_num", "masked_fill",
     "masked_fill_"}
)  # fmt: skip
_REDUCTIONS = frozenset({"sum", "max", "min", "amax", "amin", "mean", "any", "all"})
_FINITE = "-1e4"


def _name(function: ast.expr) -> str:
    """The last part of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_infinite(node: ast.AST) -> bool:
    """Whether it is minus infinity: -math.inf, -np.inf, float("-inf"), -float("inf")."""
    match node:
        case ast.UnaryOp(ast.USub(), ast.Attribute(attr="inf") | ast.Name(id="inf")):
            return True
        case ast.UnaryOp(ast.USub(), ast.Call(ast.Name("float"), [ast.Constant("inf")])):
            return True
        case ast.Call(ast.Name("float"), [ast.Constant("-inf")]):
            return True
    return False


def rescale_forgotten(source: Source, node: ast.AST) -> Edits:
    """A factor or a divisor is left out."""
    match node:
        case ast.BinOp(left, ast.Mult() | ast.Div() as op, right):
            sign = _ARITHMETIC[type(op)][0]
            if isinstance(op, ast.Mult) and _assigned(source, node, right):
                yield source.replace(node, source.of(right))
                return
            found = source.token(source.end(left), source.start(right), sign, "")
            if found is not None:
                low = len(source.text[: found.start].rstrip())
                yield Edit(low, source.end(node), "")
        case ast.AugAssign(_, ast.Mult() | ast.Div(), _):
            yield Edit(source.start(node), source.end(node), "pass")


def rescale_misplaced(source: Source, node: ast.AST) -> Edits:
    """acc * alpha + p @ v becomes (acc + p @ v) * alpha: the new part is rescaled too."""
    match node:
        case ast.BinOp(ast.BinOp(old, ast.Mult(), alpha), ast.Add(), new) if _assigned(
            source, node, old
        ):
            text = f"({source.operand(old)} + {source.of(new)}) * {source.operand(alpha)}"
            yield source.replace(node, text)


def _assigned(source: Source, node: ast.AST, operand: ast.expr) -> bool:
    """Whether an operand is what the statement assigns to: a recurrence."""
    match source.statement(node):
        case ast.Assign([ast.Name(name)], _):
            return isinstance(operand, ast.Name) and operand.id == name
    return False


def wrong_constant(source: Source, node: ast.AST) -> Edits:
    """Minus infinity becomes 0, or a number that is merely low; 0 and 1 are exchanged."""
    parent = source.parents.get(node)
    if _is_infinite(node):
        yield source.replace(node, "0.0")
        if not isinstance(parent, ast.Compare):
            yield source.replace(node, _FINITE)
        return
    match node:
        case ast.Constant(bool()):
            return
        case ast.Constant(int() | float() as value) if not isinstance(
            parent, ast.Subscript | ast.Slice | ast.UnaryOp | ast.Tuple | ast.List
        ) and not _is_axis(parent, node):
            if isinstance(value, float):
                yield source.replace(node, "0.0" if value == 1 else "1.0")
            elif value in (0, 1):
                yield source.replace(node, str(1 - value))
        case ast.Call(ast.Attribute(module, "zeros"), [shape, *rest]) if (
            isinstance(module, ast.Name) and module.id == "tl"
        ):
            others = "".join(f", {source.of(a)}" for a in rest)
            others += "".join(f", {source.of(a)}" for a in node.keywords)
            yield source.replace(node, f"tl.full({source.of(shape)}, 1.0{others})")


def _is_axis(parent: ast.AST | None, node: ast.AST) -> bool:
    match parent:
        case ast.keyword(arg="axis" | "dim" | "keepdim" | "keepdims"):
            return True
        case ast.Call(function, args) if node in args:
            return _name(function) in (*_REDUCTIONS, "program_id", "size", "transpose", "range",
                                       "arange", "unsqueeze", "squeeze", "swapaxes",
                                       "expand_dims", "repeat_interleave")  # fmt: skip
    return False


def comparison(source: Source, node: ast.AST) -> Edits:
    """A comparison is looser, tighter or turned round."""
    if not isinstance(node, ast.Compare):
        return
    places = itertools.pairwise([node.left, *node.comparators])
    for op, (left, right) in zip(node.ops, places, strict=True):
        if type(op) in _COMPARISON:
            old, new = _COMPARISON[type(op)]
            yield source.token(source.end(left), source.start(right), old, new)


def arithmetic(source: Source, node: ast.AST) -> Edits:
    """+ and -, * and /, // and %, & and | are exchanged."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
            if any(isinstance(side, ast.JoinedStr) for side in (left, right)) or any(
                isinstance(side, ast.Constant) and isinstance(side.value, str)
                for side in (left, right)
            ):
                return
            old, new = _ARITHMETIC[type(op)]
            yield source.token(source.end(left), source.start(right), old, new)
        case ast.AugAssign(target, op, value) if type(op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(op)]
            yield source.token(source.end(target), source.start(value), old, new)


def mask_halved(source: Source, node: ast.AST) -> Edits:
    """One half of a condition is left out: a & b becomes a, or b."""
    match node:
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr(), right):
            yield source.replace(node, source.operand(left))
            yield source.replace(node, source.operand(right))
        case ast.BoolOp(_, values):
            for kept in values:
                yield source.replace(node, source.operand(kept))


def off_by_one(source: Source, node: ast.AST) -> Edits:
    """The end of a range or a slice comes one too early, its beginning one too late."""
    match node:
        case ast.Call(function, [*args]) if _name(function) in ("range", "arange"):
            if isinstance(function, ast.Attribute) and source.of(function.value) == "tl":
                yield source.replace(node, f"({source.of(node)} + 1)")  # sizes are powers of 2
                return
            if len(args) > 1:
                yield source.replace(args[0], _plus(source, args[0], 1))
            if args:
                end = args[min(len(args), 2) - 1]
                yield source.replace(end, _plus(source, end, -1))
        case ast.Slice(lower, upper):
            if lower is not None:
                yield source.replace(lower, _plus(source, lower, 1))
            if upper is not None:
                yield source.replace(upper, _plus(source, upper, -1))
        case ast.Call(ast.Attribute(attr="cdiv"), [a, b]):
            yield source.replace(node, f"({source.operand(a)} // {source.operand(b)})")


def _plus(source: Source, node: ast.expr, amount: int) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return str(node.value + amount)
    loose = (ast.Compare, ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)
    text = f"({source.of(node)})" if isinstance(node, loose) else source.of(node)
    return f"{text} {'+' if amount > 0 else '-'} {abs(amount)}"


def call_dropped(source: Source, node: ast.AST) -> Edits:
    """A cast, a mask or a guard is left out: x.to(dtype) becomes x."""
    match node:
        case ast.Call(ast.Attribute(attr="to"), [ast.Attribute(attr="device")], []):
            return  # on one device it does nothing
        case ast.Call(ast.Attribute(value, name)) if name in _CASTS or name in _GUARDS:
            dot = source.token(source.end(value), source.end(node), ".", "")
            if dot is not None:
                yield Edit(dot.start, source.end(node), "")


def mask_dropped(source: Source, node: ast.AST) -> Edits:
    """where takes one side for all, or a load or a store loses its mask."""
    match node:
        case ast.Call(function, [_, a, b]) if _name(function) == "where":
            yield source.replace(node, source.operand(a))
            yield source.replace(node, source.operand(b))
        case ast.Call(keywords=[*keywords]):
            masks = [k for k in keywords if k.arg in ("mask", "other")]
            if any(k.arg == "mask" for k in masks):
                kept = [*node.args, *(k for k in keywords if k not in masks)]
                inside = ", ".join(map(source.of, kept))
                yield source.replace(node, f"{source.of(node.func)}({inside})")


def wrong_name(source: Source, node: ast.AST) -> Edits:
    """A name is taken for one that looks like it, or two like arguments are exchanged."""
    match node:
        case ast.Name(name, ast.Load()):
            function = source.function(node)
            statement = source.statement(node)
            parent = source.parents[node]
            if function is None or statement is None:
                return
            if isinstance(parent, ast.Attribute) and parent.attr in ("dtype", "device"):
                return  # query, key and value have the same
            other = similar(name, function, before=statement.lineno)
            if other is not None and not _assigns(statement, node, other):
                yield source.replace(node, other)
        case ast.Call(_, [*args]):
            for first, second in itertools.pairwise(args):
                if (
                    isinstance(first, ast.Name)
                    and isinstance(second, ast.Name)
                    and alike(first.id, second.id)
                ):
                    low, high = source.start(first), source.end(second)
                    between = source.text[source.end(first) : source.start(second)].decode()
                    yield Edit(low, high, second.id + between + first.id)


def _assigns(statement: ast.stmt, node: ast.Name, name: str) -> bool:
    """Whether a statement only gives a name the value of a node: x = x drops the statement."""
    match statement:
        case ast.Assign([ast.Name(target)], value):
            return value is node and target == name
    return False


def wrong_function(source: Source, node: ast.AST) -> Edits:
    """max and min, exp and exp2, log and log2, zeros and ones are exchanged."""
    if not isinstance(node, ast.Call):
        return
    name = _name(node.func)
    if name in _NAMES and not (name.startswith("zeros") and source.of(node.func) == "tl.zeros"):
        end = source.end(node.func)
        yield Edit(end - len(name.encode()), end, _NAMES[name])


def wrong_axis(source: Source, node: ast.AST) -> Edits:
    """A reduction, a dimension or a broadcast goes along another axis, or loses keepdims."""
    match node:
        case ast.keyword(arg="axis" | "dim", value=value):
            yield _other_axis(source, value)
        case ast.Call(function, [*args], keywords):
            if _name(function) in _REDUCTIONS:
                method = isinstance(function, ast.Attribute) and source.of(function.value) not in (
                    "tl", "np", "numpy", "torch"
                )  # fmt: skip
                axis = args[0:1] if method else args[1:2]
                for value in axis:
                    yield _other_axis(source, value)
            for given in keywords:
                if given.arg in ("keepdim", "keepdims"):
                    low = len(source.text[: source.start(given)].rstrip(b" \n\t,"))
                    high = source.end(given)
                    if source.text[low - 1 : low] == b"(":
                        yield Edit(source.start(given), high, "")
                    else:
                        yield Edit(low, high, "")
        case ast.Subscript(_, ast.Tuple([ast.Slice(None, None, None) as a, ast.Constant(None)])):
            yield Edit(source.start(a), source.end(node) - 1, "None, :")
        case ast.Subscript(_, ast.Tuple([ast.Constant(None) as a, ast.Slice(None, None, None)])):
            yield Edit(source.start(a), source.end(node) - 1, ":, None")
        case ast.Subscript(ast.Attribute(attr="shape"), index):
            yield _other_axis(source, index)
        case ast.Call(ast.Attribute(attr="program_id" | "size"), [axis]):
            yield _other_axis(source, axis)


def _other_axis(source: Source, value: ast.expr) -> Edit | None:
    match value:
        case ast.UnaryOp(ast.USub(), ast.Constant(int() as n)):
            return source.replace(value, "-2" if n == 1 else "-1")
        case ast.Constant(int() as n) if not isinstance(n, bool):
            return source.replace(value, "0" if n == 1 else str(n - 1) if n else "1")
    return None


def condition(source: Source, node: ast.AST) -> Edits:
    """A condition always or never holds."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Constant):
            yield source.replace(test, "True")
            yield source.replace(test, "False")
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield source.replace(test, "False")


def sign_dropped(source: Source, node: ast.AST) -> Edits:
    """A minus, a not or a ~ is left out."""
    match node:
        case ast.UnaryOp(ast.USub() | ast.Invert() | ast.Not(), operand) if not _is_infinite(
            node
        ) and not isinstance(operand, ast.Constant):
            low = source.start(node) + (3 if isinstance(node.op, ast.Not) else 1)
            blanks = len(source.text) - low - len(source.text[low:].lstrip(b" "))
            yield Edit(source.start(node), low + blanks, "")


def statement_dropped(source: Source, node: ast.AST) -> Edits:
    """An update of the state is left out."""
    match node:
        case ast.AugAssign() | ast.Continue() | ast.Break():
            yield source.replace(node, "pass")
        case ast.Assign([ast.Name(name)], value):
            updates = isinstance(value, ast.Name) or any(
                isinstance(part, ast.Name) and part.id == name for part in ast.walk(value)
            )
            if updates and _assigned_before(source, node, name):
                yield source.replace(node, "pass")
        case ast.Assign([ast.Tuple() as names, *_], ast.Tuple() as values):
            written = {n.id for n in names.elts if isinstance(n, ast.Name)}
            read = {n.id for n in ast.walk(values) if isinstance(n, ast.Name)}
            if written & read and all(_assigned_before(source, node, n) for n in written):
                yield source.replace(node, "pass")
        case ast.Expr(ast.Call()):
            yield source.replace(node, "pass")


def _assigned_before(source: Source, node: ast.stmt, name: str) -> bool:
    """Whether a name has a value without this statement."""
    function = source.function(node)
    if function is None:
        return False
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return name in {a.arg for a in every} or any(
        isinstance(n, ast.Name)
        and n.id == name
        and isinstance(n.ctx, ast.Store)
        and n.lineno < node.lineno
        for n in ast.walk(function)
    )


OPERATORS: tuple[Operator, ...] = (
    rescale_forgotten, rescale_misplaced, statement_dropped, wrong_constant, call_dropped,
    mask_dropped, mask_halved, comparison, off_by_one, wrong_name, wrong_axis, wrong_function,
    arithmetic, sign_dropped, condition,
)  # fmt: skip
"""All, the commonest bugs first: of two that make the same text, the first counts."""
