"""Equality of the modules of exported programs: class, tree, state, hooks, guards, graph, code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import NodeSource
from torch.nn import Module

from fxpress.export import module
from tests.support.compare import by_name, same_value
from tests.support.unflatten_compare import (
    TABLES,
    assert_same_outputs,
    assert_untouched,
    described,
    fresh,
    leaves,
    snapshot,
)

# The tables of hooks of a module.
_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
_FLAGS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")


def torchs(program: ExportedProgram, **options: Any) -> GraphModule:
    """Return torch's module, without warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return program.module(**options)


def ours_of(program: ExportedProgram, **options: Any) -> GraphModule:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return module(program, **options)


# ---- graphs -------------------------------------------------------------------------------------


def notes(sources: list[NodeSource], graph: Graph) -> list[Any]:
    """Describe the origin of a node; "own" replaces the id of the node's graph."""

    def note(source: NodeSource) -> Any:
        info = source.node_info
        is_own = source.pass_name.endswith(".unlift()") and source.graph_id == id(graph)
        own = "own" if is_own else source.graph_id
        said = (source.name, source.target, own) if info is not None else None
        return source.pass_name, source.action, said, [note(each) for each in source.from_node]

    return [note(source) for source in sources]


def assert_same_meta(ours: Node, theirs: Node) -> None:
    at = f"meta of {theirs.name}"
    assert type(ours.meta) is type(theirs.meta), at
    assert list(ours.meta) == list(theirs.meta), at
    for key, mine in ours.meta.items():
        other = theirs.meta[key]
        if key == "from_node":
            assert notes(mine, ours.graph) == notes(other, theirs.graph), at
            assert vars(mine[0]).keys() == vars(other[0]).keys(), at
        elif mine is not other:
            assert described(mine) == described(other), f"{at}: {key}: {mine} != {other}"


def assert_same_node(ours: Node, theirs: Node) -> None:
    at = f"node {theirs.name}"
    assert (ours.name, ours.op) == (theirs.name, theirs.op), at
    assert ours.target == theirs.target, at
    for field in ("args", "kwargs"):
        mine = by_name(getattr(ours, field), ours.graph)
        other = by_name(getattr(theirs, field), theirs.graph)
        assert same_value(mine, other), f"{at}: {field}: {mine} != {other}"
    assert ours.type == theirs.type, at
    assert [u.name for u in ours.users] == [u.name for u in theirs.users], f"{at}: users"
    inputs = [[i.name for i in n.all_input_nodes] for n in (ours, theirs)]
    assert inputs[0] == inputs[1], f"{at}: inputs"
    assert_same_meta(ours, theirs)


def found(graph: Graph) -> dict[Any, set[str]]:
    table = graph._find_nodes_lookup_table.table
    return {key: {n.name for n in nodes} for key, nodes in table.items() if nodes}


def assert_same_graph(ours: Graph, theirs: Graph) -> None:
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes]
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert_same_node(mine, other)
    assert len(ours.nodes) == len(theirs.nodes)
    assert found(ours) == found(theirs)
    spaces = [graph._graph_namespace for graph in (ours, theirs)]
    assert spaces[0]._used_names == spaces[1]._used_names
    assert spaces[0]._base_count == spaces[1]._base_count
    assert ours._tracer_cls is theirs._tracer_cls
    assert ours._tracer_extras == theirs._tracer_extras
    assert type(ours._codegen) is type(theirs._codegen)
    mine, other = (vars(graph._codegen) for graph in (ours, theirs))
    assert mine == other
    assert ours.owning_module is not None
    ours.lint()


# ---- modules ------------------------------------------------------------------------------------


def assert_same_class(ours: type, theirs: type) -> None:
    assert (ours.__name__, ours.__qualname__) == (theirs.__name__, theirs.__qualname__)
    assert ours.__module__ == theirs.__module__
    assert ours.__mro__[1:] == theirs.__mro__[1:]
    assert type(ours) is type(theirs)


def assert_same_tables(ours: Module, theirs: Module, at: str) -> None:
    for table in TABLES:
        assert list(vars(ours)[table]) == list(vars(theirs)[table]) or (
            vars(ours)[table] == vars(theirs)[table]
        ), f"{at}: {table}"
    assert ours.training == theirs.training, at
    for name, value in vars(theirs).items():
        if isinstance(value, torch.Tensor):
            assert_same_tensor(vars(ours)[name], value, f"{at}.{name}")
        elif isinstance(value, torch.ScriptObject):
            assert vars(ours)[name] is value, f"{at}.{name}"
    for table in ("_parameters", "_buffers"):
        for name, value in vars(theirs)[table].items():
            assert vars(ours)[table][name] is value, f"{at}.{name} is not the program's"


def assert_same_tensor(ours: torch.Tensor, theirs: torch.Tensor, at: str) -> None:
    """Assert that both are one constant, or that it was detached and both share its memory."""
    assert ours is theirs or (
        type(ours) is type(theirs)
        and ours.data_ptr() == theirs.data_ptr()
        and ours.requires_grad == theirs.requires_grad
    ), at


def kind_of(hook: Callable[..., Any]) -> Any:
    """Return a hook, or the sets in its closure: equivalent hooks of `module()` have equal sets."""
    closure = getattr(hook, "__closure__", None)
    if not closure:
        return hook
    return [cell.cell_contents for cell in closure if isinstance(cell.cell_contents, set)]


def assert_same_hooks(ours: Module, theirs: Module) -> None:
    for table in _HOOKS:
        mine, other = ([kind_of(h) for h in getattr(m, table).values()] for m in (ours, theirs))
        assert mine == other, table
    for flags, table in zip(_FLAGS, _HOOKS, strict=False):
        places = [
            [list(getattr(m, table)).index(number) for number in getattr(m, flags)]
            for m in (ours, theirs)
        ]
        assert places[0] == places[1], flags


def guard_code(guards: Module) -> CodeType:
    """Return the code of the function that checks guards."""
    function: Any = guards.forward
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code: CodeType = function.__code__
    return code


def assert_same_guards(ours: GraphModule, theirs: GraphModule) -> None:
    assert hasattr(ours, "_guards_fn") == hasattr(theirs, "_guards_fn")
    if not hasattr(theirs, "_guards_fn"):
        return
    mine, other = ours._guards_fn, theirs._guards_fn
    assert type(mine) is type(other)
    assert list(vars(mine)) == list(vars(other))
    assert mine._is_impure is other._is_impure is True
    assert guard_code(mine) == guard_code(other), (guard_code(mine).co_consts, guard_code(other))


def assert_same_module(ours: GraphModule, theirs: GraphModule) -> None:
    """Assert that all observable attributes of two modules are equal."""
    assert_same_class(type(ours), type(theirs))
    names = [dict(m.named_modules(remove_duplicate=False)) for m in (ours, theirs)]
    assert list(names[0]) == list(names[1])
    for at, other in names[1].items():
        if at and isinstance(other, GraphModule):
            continue  # the body of an operator, compared by the caller
        if at:
            assert type(names[0][at]) is type(other), at
        assert_same_tables(names[0][at], other, at)
    assert_same_graph(ours.graph, theirs.graph)
    assert_same_hooks(ours, theirs)
    assert_same_guards(ours, theirs)
    assert ours.code == theirs.code
    assert list(vars(ours)) == list(vars(theirs))
    assert ours._lineno_map == theirs._lineno_map
    assert ours._prologue_start == theirs._prologue_start
    assert list(vars(type(ours))) == list(vars(type(theirs))) or (
        set(vars(type(ours))) == set(vars(type(theirs)))
    )
    assert (ours._in_spec, ours._out_spec) == (theirs._in_spec, theirs._out_spec)
    assert ours.range_constraints is theirs.range_constraints or (
        ours.range_constraints == theirs.range_constraints == []
    )
    assert ours.validate_inputs is theirs.validate_inputs is True
    assert ours._tracer_cls is theirs._tracer_cls
    assert ours.meta.keys() == theirs.meta.keys()
    assert all(ours.meta[key] is value for key, value in theirs.meta.items())
    for name in ("train", "eval"):
        with pytest.raises(NotImplementedError) as raised:
            getattr(theirs, name)()
        with pytest.raises(NotImplementedError, match=f"^{str(raised.value)[:10]}") as got:
            getattr(ours, name)()
        assert str(got.value) == str(raised.value)


def assert_same_bodies(ours: GraphModule, theirs: GraphModule) -> None:
    """The bodies of operators are the program's own, as in torch's module."""
    for (name, mine), (_, other) in zip(
        ours.named_children(), theirs.named_children(), strict=True
    ):
        if isinstance(other, GraphModule):
            assert mine is other, name


# ---- all of it ----------------------------------------------------------------------------------


def assert_runs_alike(
    ours: GraphModule, theirs: GraphModule, args: Any, kwargs: Mapping[str, Any]
) -> None:
    """Assert equal results, writes to inputs and exceptions; restore the state that both share."""
    state = [t.detach().clone() for t in tensors_of(theirs)]

    def put_back() -> None:
        with torch.no_grad():
            for tensor, saved in zip(tensors_of(theirs), state, strict=True):
                tensor.detach().copy_(saved) if tensor.layout is torch.strided else None

    def outcome(made: GraphModule) -> Any:
        inputs, named = fresh((args, dict(kwargs)))
        torch.manual_seed(0)
        try:
            result = made(*inputs, **named)
        except Exception as error:
            return type(error), str(error)
        finally:
            after = [t.detach().clone() for t in tensors_of(made)]
            put_back()
        return result, leaves((inputs, named)), after

    wanted, got = outcome(theirs), outcome(ours)
    assert len(wanted) == len(got), (wanted, got)
    if len(wanted) == 2:
        assert got == wanted
        return
    assert_same_outputs(got[0], wanted[0], exact=True)
    for mine, other in zip(got[1:], wanted[1:], strict=True):
        for a, b in zip(mine, other, strict=True):
            assert_same_outputs(a, b, exact=True)


def tensors_of(made: Module) -> list[torch.Tensor]:
    """Parameters, buffers and constants, each once."""
    constants = [t for m in made.modules() for t in vars(m).values() if isinstance(t, torch.Tensor)]
    found = {id(t): t for t in (*made.parameters(), *made.buffers(), *constants)}
    return list(found.values())


def assert_module_as_torch(
    program: ExportedProgram,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    bodies: bool = True,
    run: bool = True,
) -> GraphModule:
    """Compare `module(program)` with `program.module()`, with guards and without; run both.

    Returns fxpress's module with guards. Also asserts that the program has not changed.
    """
    before = snapshot(program)
    mine = {check: ours_of(program, check_guards=check) for check in (False, True)}
    assert_untouched(program, before)
    for check, ours in mine.items():
        theirs = torchs(program, check_guards=check)
        assert_same_module(ours, theirs)
        if bodies:
            assert_same_bodies(ours, theirs)
        if args is not None and run:
            assert_runs_alike(ours, theirs, args, kwargs or {})
    return mine[True]


def flat_inputs(program: ExportedProgram) -> list[Any]:
    return list(pytree.tree_leaves(program.example_inputs))
