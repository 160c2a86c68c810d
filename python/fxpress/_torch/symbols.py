"""Import torch's names for symbolic sizes, their expressions and their ShapeEnv."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._export.passes import _node_metadata_hook as metadata_hook
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    free_unbacked_symbols,
    statically_known_true,
    sym_eq,
)
from torch.utils._sympy import interp, reference
from torch.utils._thunk import Thunk

KINDS = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
SYMBOLIC = tuple(KINDS)
_TYPES: dict[type, Callable[[Any], Any]] = {k: made for made, k in KINDS.items()}
SIZE_OF = torch.ops.aten.sym_size.int
STRIDE_OF = torch.ops.aten.sym_stride.int
OFFSET_OF = torch.ops.aten.sym_storage_offset.default
_COMPUTED = frozenset(
    function
    for module in (operator, math)
    for function in vars(module).values()
    if callable(function)
) | {torch.sym_max, torch.sym_min, torch.sym_float, torch.sym_int, torch.sym_not, torch.sym_ite}
# The stack trace of nodes that torch adds to read sizes of inputs and to check assumptions.
TRACE = 'File "torch/fx/passes/runtime_assert.py", line 24, in insert_deferred_runtime_asserts'


def comparable(number: Any) -> Any:
    """Return a number, or a symbolic number's expression; numbers with equal results are equal."""
    return number.node.expr if isinstance(number, SYMBOLIC) else number


def another_number(value: Any) -> Any:
    """Return a new SymInt or SymFloat with the same expression; return other values unchanged."""
    if not isinstance(value, (torch.SymInt, torch.SymFloat)):
        return value
    node = value.node
    facts = (node.pytype, node._hint, node.constant, node.fx_node)
    return type(value)(SymNode(node._expr, node.shape_env, *facts))


def computes(function: Any) -> bool:
    """Return whether a function computes a number from numbers."""
    try:
        return function in _COMPUTED
    except TypeError:
        return False


def expression_of(number: Any, shape_env: Any) -> Any:
    """Return a symbolic number's expression; None if constant, unbacked or of another ShapeEnv."""
    node = number.node
    if type(node) is not SymNode or node.shape_env is not shape_env or node.constant is not None:
        return None
    expression = node.expr
    if not expression.free_symbols:
        return None
    return None if free_unbacked_symbols(number) else expression


def as_int(number: Any) -> int | None:
    """Return an int, or the value of a constant SymInt as an int; None for other SymInts."""
    return number if type(number) is int else number.node.maybe_as_int()


def symbol_read(number: Any) -> Any:
    """Return the symbol that is an input's size before replacements; None for other expressions."""
    expression = None if type(number) is int else number.node._expr
    return expression if expression is not None and expression.is_Symbol else None


def known_equality(one: Any, other: Any) -> bool | None:
    """Return whether two sizes are equal; None if the answer depends on the values of symbols."""
    equal = sym_eq(one, other)
    if statically_known_true(equal):
        return True
    return False if statically_known_true(torch.sym_not(equal)) else None


def is_symbol(expression: Any) -> bool:
    """Return whether an expression is a single symbol."""
    return bool(expression.is_Symbol)


def has_symbols(shape_env: Any) -> bool:
    """Return whether a ShapeEnv has symbols; False if there is no ShapeEnv (None)."""
    return shape_env is not None and bool(shape_env.var_to_range)


def knowledge(shape_env: Any) -> tuple[Any, ...]:
    """Return the facts about symbols that a trace may use, as a key."""
    if not has_symbols(shape_env):
        return ()
    values = vars(shape_env)
    tables = ("backed_var_to_val", "var_to_hint_override", "replacements", "axioms")
    return (
        tuple((s, r.lower, r.upper) for s, r in shape_env.var_to_range.items()),
        tuple(tuple(values[name].items()) for name in tables),
        tuple(guard.expr for guard in shape_env.guards),
        frozenset(shape_env.divisible),
        frozenset(shape_env.size_like),
        shape_env.settings,
    )


def state(shape_env: Any) -> tuple[Any, ...]:
    """Return counters of a ShapeEnv. If a trace adds a guard or a symbol, a counter changes."""
    if shape_env is None:
        return ()
    return (
        len(shape_env.guards),
        len(shape_env.axioms),
        len(shape_env.replacements),
        len(shape_env.var_to_range),
        len(shape_env.divisible),
        shape_env.num_deferred_runtime_asserts,
        len(shape_env.pending_fresh_unbacked_symbols),
        shape_env._version_counter,
        shape_env.unbacked_symint_counter,
        shape_env.unbacked_symfloat_counter,
    )


def without_guards(shape_env: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which comparisons of sizes add no guards."""
    if shape_env is None:
        return contextlib.nullcontext()
    block: contextlib.AbstractContextManager[None] = shape_env.suppress_guards()
    return block


def number_of(expression: Any, kind: type, shape_env: Any) -> Any:
    """Return the SymInt, SymFloat or SymBool (by `kind`) for a sympy expression."""
    return _TYPES[kind](SymNode(expression, shape_env, kind, None))


def forget_numbers(tracer: Any) -> None:
    """Clear the tables in which a tracer finds the nodes of symbolic numbers."""
    tracer.symnode_tracker.sym_node_dict.clear()
    tracer.sympy_expr_tracker.clear()


def track_number(number: Any, tracer: Any, name: str, meta: Any) -> Any:
    """Create a placeholder for a symbolic number in the graph of a trace; return its node."""
    with meta:
        proxy = tracer.create_proxy("placeholder", name, (), {})
    proxy.node.meta["val"] = number
    proxy_tensor.set_proxy_slot(number, tracer, Thunk(lambda: proxy))
    return proxy.node


class Slot(NamedTuple):
    """How a trace finds the node of a symbolic int."""

    node: Any  # its node; with `reads`, the node of the tensor from which the int is read
    reads: Any = None  # if not None, the operator that reads the int, when it is needed
    indexes: tuple[int, ...] = ()  # its arguments after the tensor


@dataclass(frozen=True)
class _Read:
    """Creates the node that reads a symbolic int from a tensor."""

    slot: Slot
    tracer: Any

    def __call__(self, number: Any, *indexes: int) -> Any:
        source = torch.fx.Proxy(self.slot.node, self.tracer)
        made = self.tracer.create_proxy("call_function", self.slot.reads, (source, *indexes), {})
        return proxy_tensor.set_meta(made, number)


_NUMEL = torch.ops.aten.sym_numel.default
_READS = {each._opname: each for each in (SIZE_OF, STRIDE_OF, OFFSET_OF, _NUMEL)}


def slot_of(number: Any, tracer: Any) -> Slot | None:
    """Return how a trace finds the node of a symbolic int; None if it has no entry for the int.

    The Slot has no node if the node will be computed from other symbolic ints when it is needed.
    """
    thunk = tracer.symnode_tracker.get(number)
    if thunk is None:
        return None
    if type(thunk.f) is not functools.partial:
        return Slot(thunk.force().node)
    read = thunk.f.func
    if type(read) is _Read:
        return read.slot
    (name,) = _READS.keys() & read.__code__.co_names or (None,)
    if name is None:
        return Slot(None)
    source = inspect.getclosurevars(read).nonlocals["proxy"].node
    return Slot(source, _READS[name], thunk.f.args[1:])


def set_slot(number: Any, slot: Slot, tracer: Any) -> None:
    """Set how a trace finds the node of a symbolic int."""
    if slot.reads is None:
        proxy = torch.fx.Proxy(slot.node, tracer)
        thunk = Thunk(lambda: proxy)
    else:
        thunk = Thunk(functools.partial(_Read(slot, tracer), number, *slot.indexes))
    tracer.symnode_tracker[number] = thunk


class Part(NamedTuple):
    """A node that computes a part of an expression."""

    number: Any  # a key of the number: its expression; another key if torch does not share the node
    expression: Any
    node: torch.fx.Node


def computed(expression: Any, graph: torch.fx.Graph) -> list[Part] | None:
    """Add placeholders for an expression's symbols, and the nodes with which torch computes it.

    Return None if the nodes for a part of the expression are not known.
    """
    tracer = torch.fx.proxy.GraphAppendingTracer(graph)
    symbols = sorted(expression.free_symbols, key=str)
    known = {s: torch.fx.Proxy(graph.placeholder(str(s)), tracer) for s in symbols}
    parts = [Part(symbol, symbol, proxy.node) for symbol, proxy in known.items()]
    return parts if _compute(expression, graph, known, parts) else None


def _compute(
    expression: Any, graph: torch.fx.Graph, known: dict[Any, Any], parts: list[Part]
) -> bool:
    """Add the nodes of an expression; return False if the nodes of a part are not known."""
    if expression in known:
        return True
    given = []
    for part in expression.args:
        if not part.is_number and not _compute(part, graph, known, parts):
            return False
        given.append(
            interp.sympy_interp(reference.PythonReferenceAnalysis, {}, part)
            if part.is_number
            else known[part]
        )
    before = len(graph.nodes)
    made = interp._run_sympy_handler(reference.PythonReferenceAnalysis, given, expression)
    known[expression] = made
    steps = [*graph.nodes][before:-1]
    if len(steps) != (len(given) - 2 if expression.is_Mul else 0):
        return False
    for i, step in enumerate(steps):
        product = expression.func(*expression.args[: i + 2])
        parts.append(Part((expression, i), product, step))
    parts.append(Part(expression, expression, made.node))
    return True


def function_of(target: Any) -> tuple[str, str]:
    """Return the `torch_fn` of nodes that torch adds for sizes."""
    return f"{target.__name__}_0", f"{type(target).__name__}.{target.__name__}"


def describe_size_node(node: torch.fx.Node) -> None:
    """Set the meta that torch gives to a node that reads a size of an input."""
    metadata_hook._node_metadata_hook(node, metadata={"stack_trace": TRACE})


def state_of_caches(shape_env: Any) -> tuple[Any, ...]:
    """Return a key of a ShapeEnv and of the caches from which torch reuses symbolic sizes."""
    tables = [vars(shape_env).get(name, {}) for name in ("fake_tensor_cache", "_symop_cache")]
    return knowledge(shape_env), frozenset(map(hash, tables[0])), len(tables[1])
