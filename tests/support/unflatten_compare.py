"""Equality of unflattened modules: tree, aliasing, graphs node by node, state, results."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import NodeSource
from torch.nn import Module

from tests.support.compare import by_name, same_value

# The attribute `torch.export.unflatten` is the function, so the module is imported by its name.
theirs_module = importlib.import_module("torch.export.unflatten")
THEIR_CLASSES = (
    theirs_module.InterpreterModule,
    theirs_module.InterpreterModuleDispatcher,
    theirs_module.UnflattenedModule,
)
Dispatcher = theirs_module.InterpreterModuleDispatcher
TABLES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


# ---- the tree -----------------------------------------------------------------------------------


def parts(root: Module) -> Iterator[tuple[str, Module]]:
    """Yield each module under each of its names, including the calls of dispatchers.

    Bodies of higher-order operators come after their siblings, sorted by name: torch adds them in
    the arbitrary order of a set.
    """

    def walk(name: str, module: Module) -> Iterator[tuple[str, Module]]:
        yield name, module
        children = [(n, child) for n, child in module._modules.items() if child is not None]
        children.sort(key=lambda item: item[0] if isinstance(item[1], GraphModule) else "")
        for child, value in children:
            yield from walk(f"{name}.{child}".lstrip("."), value)
        if isinstance(module, Dispatcher):
            for index, call in enumerate(module.call_modules()):
                yield from walk(f"{name}[{index}]", call)

    return walk("", root)


def partition_of(items: Iterable[tuple[str, Hashable]]) -> list[list[str]]:
    """Group names by identity, in order of first appearance."""
    groups: dict[Hashable, list[str]] = {}
    for name, identity in items:
        groups.setdefault(identity, []).append(name)
    return list(groups.values())


def assert_same_tree(ours: Module, theirs: Module) -> None:
    mine, other = list(parts(ours)), list(parts(theirs))
    assert [name for name, _ in mine] == [name for name, _ in other]
    for (name, a), (_, b) in zip(mine, other, strict=True):
        assert type(a).__name__ == type(b).__name__, name
        if isinstance(b, THEIR_CLASSES):
            assert isinstance(a, type(b)), f"{name}: {type(a)} passes for no {type(b)}"
        elif not isinstance(b, GraphModule):
            assert type(a) is type(b), name
        assert a.training == b.training, name
    assert partition_of((n, id(m)) for n, m in mine) == partition_of((n, id(m)) for n, m in other)
    tables = [
        partition_of((n, id(m._modules)) for n, m in side if isinstance(m, THEIR_CLASSES))
        for side in (mine, other)
    ]
    assert tables[0] == tables[1], "tables of children are shared differently"


def called_types(program: ExportedProgram) -> dict[str, str]:
    """Return the class of each module that the program calls, by path, as `type_name`."""
    types: dict[str, str] = {}
    for node in program.graph.nodes:
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            types.setdefault(path, kind)
    return types


def assert_type_names(ours: Module, program: ExportedProgram) -> None:
    """Assert the class names of modules; torch may give a module the class name of a child."""
    types = called_types(program)
    for name, module in ours.named_modules(remove_duplicate=False):
        path = ".".join(part.split("@")[0] for part in name.split("."))
        if isinstance(module, THEIR_CLASSES) and path in types:
            assert module.type_name() == module._ty, name
            accepted = {types[path]}
            # An aliased module may have been called under another of its names.
            accepted |= {
                types[n]
                for n, m in ours.named_modules(remove_duplicate=False)
                if m is module and n in types
            }
            assert module.type_name() in accepted, name


# ---- graphs -------------------------------------------------------------------------------------


def described(value: Any) -> Any:
    """Return meta that can be compared by ==: descriptions of fake tensors, symbols as text."""
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return "tensor", type(value), str(value.shape), value.dtype, value.device, value.layout
        numbers = (*value.shape, "|", *value.stride(), "|", value.storage_offset())
        rest = (value.dtype, value.device, value.requires_grad)
        return "tensor", type(value), [str(n) for n in numbers], *rest
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return "symbol", type(value), str(value.node.expr)
    if isinstance(value, Mapping):
        return "mapping", [(k, described(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [described(item) for item in value]
    if isinstance(value, NodeSource):
        return value.to_dict()
    if isinstance(value, Node):
        return "%", value.name
    if isinstance(value, torch.ScriptObject) and value._has_method("__getstate__"):
        return value._type().qualified_name(), described(value.__getstate__())
    by_identity = type(value).__eq__ is object.__eq__
    if by_identity and not (callable(value) and hasattr(value, "__qualname__")):
        return type(value)
    if isinstance(value, float) and value != value:
        return "nan"
    return value


def assert_same_meta(ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str) -> None:
    assert list(ours) == list(theirs), f"{at}: keys of meta {list(ours)} != {list(theirs)}"
    for key in ours:
        mine, other = described(ours[key]), described(theirs[key])
        assert mine == other, f"{at}: meta[{key!r}]: {mine} != {other}"


def assert_same_node(ours: Node, theirs: Node, at: str) -> None:
    at = f"{at}: node {theirs.name}"
    assert ours.name == theirs.name, f"{at}: name {ours.name}"
    assert ours.op == theirs.op, f"{at}: op {ours.op} != {theirs.op}"
    assert ours.target == theirs.target, f"{at}: target {ours.target} != {theirs.target}"
    assert type(ours.target) is type(theirs.target), at
    for field in ("args", "kwargs"):
        mine = by_name(getattr(ours, field), ours.graph)
        other = by_name(getattr(theirs, field), theirs.graph)
        assert same_value(mine, other), f"{at}: {field}: {mine} != {other}"
    assert ours.type == theirs.type, f"{at}: type"
    assert {u.name for u in ours.users} == {u.name for u in theirs.users}, f"{at}: users"
    assert [i.name for i in ours.all_input_nodes] == [i.name for i in theirs.all_input_nodes], at
    assert_same_meta(ours.meta, theirs.meta, at)


def assert_same_unflattened_graph(ours: Graph, theirs: Graph, at: str) -> None:
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes], at
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert_same_node(mine, other, at)
    used = [graph._graph_namespace._used_names for graph in (ours, theirs)]
    assert used[0] == used[1], f"{at}: names in use: {used[0] ^ used[1]}"
    assert len(ours.nodes) == len(theirs.nodes)
    assert [n.name for n in reversed(ours.nodes)] == [n.name for n in reversed(theirs.nodes)], at
    ours.lint()


def assert_same_code(ours: Any, theirs: Any, at: str) -> None:
    """Compare code; torch's graph is generated again, because torch edits some graphs later."""
    module = ours.graph_module
    assert isinstance(module, GraphModule), at
    assert ours.graph_module is module, f"{at}: made twice"
    assert module.graph is ours.graph, at
    assert module.code == theirs.graph.python_code("self").src, f"{at}: code"


def assert_same_graphs(ours: Module, theirs: Module, *, code: bool = True) -> None:
    seen: set[int] = set()
    for (name, a), (_, b) in zip(parts(ours), parts(theirs), strict=True):
        mine, other = (getattr(m, "graph", None) for m in (a, b))
        assert isinstance(mine, Graph) == isinstance(other, Graph), name
        if mine is None or other is None or id(mine) in seen:
            continue
        seen.add(id(mine))
        at = name or "root"
        if a is b:
            continue  # the body of a higher-order operator: the program's own
        assert_same_unflattened_graph(mine, other, at)
        if isinstance(b, GraphModule):
            continue
        if code and "graph_module" in vars(b):  # torch does not finalize modules without nodes
            assert_same_code(a, b, at)
        if hasattr(b, "arg_names"):
            assert a.arg_names == b.arg_names, f"{at}: arg_names"
        specs = [{k: v for k, v in vars(m).items() if k.startswith("_spec_")} for m in (a, b)]
        assert specs[0] == specs[1], f"{at}: specs"
        assert a._run_with_interpreter == b._run_with_interpreter, at


def assert_values_are_the_programs(ours: Module, program: ExportedProgram) -> None:
    """Fake values are shared with the program, not copied."""
    owned = {
        id(leaf)
        for module in program.graph_module.modules()
        if isinstance(module, GraphModule)
        for node in module.graph.nodes
        for leaf in pytree.tree_leaves(node.meta.get("val"))
    }
    for name, module in parts(ours):
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            for leaf in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(leaf, torch.Tensor):
                    assert id(leaf) in owned, f"{name}: {node.name}: a copy of the program's value"


# ---- state --------------------------------------------------------------------------------------


def is_state(value: object) -> bool:
    return isinstance(value, (torch.Tensor, torch.ScriptObject))


def state_of(module: Module) -> dict[str, tuple[str, Any]]:
    """Kind and value of every tensor and custom object that the module itself has."""
    found: dict[str, tuple[str, Any]] = {}
    for name, value in vars(module).items():
        if name not in TABLES and is_state(value):
            found[name] = ("constant", value)
    for name, value in module._parameters.items():
        found[name] = ("parameter", value)
    for name, value in module._buffers.items():
        kept = name not in module._non_persistent_buffers_set
        found[name] = ("buffer" if kept else "buffer, not persistent", value)
    if isinstance(module, Dispatcher):
        # U-95: in torch's dispatcher, buffers are plain attributes; in its calls, they are buffers.
        first = state_of(module.call_modules()[0])
        found = {n: (first[n][0], value) for n, (_, value) in sorted(found.items())}
    return found


def assert_equal_tensors(ours: Any, theirs: Any, at: str) -> None:
    assert type(ours) is type(theirs), at
    if isinstance(ours, torch.Tensor):
        torch.testing.assert_close(
            ours.detach(),
            theirs.detach(),
            rtol=0,
            atol=0,
            equal_nan=True,
            msg=lambda m: f"{at} {m}",
        )
        assert ours.stride() == theirs.stride(), at
        assert ours.requires_grad == theirs.requires_grad, f"{at}: requires_grad"
        assert ours.is_leaf == theirs.is_leaf, f"{at}: is_leaf"


def buffers_of_dispatchers(root: Module) -> set[str]:
    return {
        f"{name}.{buffer}"
        for name, module in root.named_modules(remove_duplicate=False)
        if isinstance(module, Dispatcher)
        for buffer, (kind, _) in state_of(module).items()
        if kind == "buffer"
    }


def assert_same_state(ours: Module, theirs: Module, program: ExportedProgram | None) -> None:
    mine: dict[str, Any] = {}
    other: dict[str, Any] = {}
    specs = program.graph_signature.input_specs if program is not None else []
    used = {spec.target for spec in specs}
    kept: set[str] = set()
    for (name, a), (_, b) in zip(parts(ours), parts(theirs), strict=True):
        left, right = state_of(a), state_of(b)
        if isinstance(b, Dispatcher):  # U-95: torch's has only the state in the signature
            names = {key: f"{name}.{key}".lstrip(".") for key in left if key not in right}
            assert used.isdisjoint(names.values()), name
            kept.update(names.values())
            left = {key: value for key, value in left.items() if key in right}
        assert list(left) == list(right), f"{name}: {list(left)} != {list(right)}"
        for key, (kind, value) in left.items():
            at = f"{name}.{key}".lstrip(".")
            assert kind == right[key][0], f"{at}: {kind} != {right[key][0]}"
            assert_equal_tensors(value, right[key][1], at)
            mine[at], other[at] = value, right[key][1]
    dispatched = buffers_of_dispatchers(theirs)
    keys = [list(module.state_dict()) for module in (ours, theirs)]
    if any(isinstance(m, Dispatcher) for m in theirs.modules()):
        # torch takes the attributes of a dispatcher from a set; and U-95
        assert sorted(set(keys[0]) - kept) == sorted({*keys[1], *dispatched} - kept)
    else:
        assert keys[0] == keys[1]
    constants = set(program.constants) if program is not None else set()
    left, right = (
        partition_of((at, id(v)) for at, v in side.items() if plain(at) not in constants)
        for side in (mine, other)
    )
    assert left == right, "aliasing"
    if program is not None:
        assert_constants_aliased(mine, program)
        sources = [*program.state_dict.values(), *program.constants.values()]
        pointers = {t.untyped_storage()._cdata for t in sources if isinstance(t, torch.Tensor)}
        for at, value in mine.items():  # U-70: the module shares unused state with the program
            if isinstance(value, torch.Tensor):
                kept = [t.untyped_storage()._cdata in pointers for t in (value, other[at])]
                assert kept[0] == kept[1], f"{at}: shared with the program: {kept}"


def plain(at: str) -> str:
    """The name that a program has for the state of a call: "a@1.w" and "a[1].w" are "a.w"."""
    return ".".join(part.split("@")[0].split("[")[0] for part in at.split("."))


def assert_constants_aliased(ours: Mapping[str, Any], program: ExportedProgram) -> None:
    """Assert that constants that are one tensor in the program are one tensor here."""

    def identity(value: Any) -> Hashable:
        if not isinstance(value, torch.Tensor):
            return id(value)
        return value.untyped_storage()._cdata, value.stride(), value.shape, value.storage_offset()

    names = [at for at in ours if plain(at) in program.constants]
    wanted = partition_of((at, identity(program.constants[plain(at)])) for at in names)
    assert partition_of((at, id(ours[at])) for at in names) == wanted, "aliasing of constants"


# ---- all of it ----------------------------------------------------------------------------------


def assert_same_unflattened(
    ours: Any, theirs: Any, program: ExportedProgram | None = None, *, code: bool = True
) -> None:
    """Assert that all modules, graphs, state and tables equal torch's.

    Where fxpress intentionally differs from torch, its rule is checked instead: U-41 (class names),
    U-72 (aliasing of constants) and U-95 (buffers of dispatched modules). Fake values are compared
    by `described`. If `program` is given, they must be the program's objects.
    """
    assert_same_tree(ours, theirs)
    assert_same_graphs(ours, theirs, code=code)
    assert_same_state(ours, theirs, program)
    assert [n.name for n in ours.input_placeholders] == [n.name for n in theirs.input_placeholders]
    assert all(node.graph is ours.graph for node in ours.input_placeholders)
    assert ours.module_call_graph == theirs.module_call_graph
    assert ours.graph_signature == theirs.graph_signature
    assert ours.range_constraints == theirs.range_constraints
    assert ours.equality_constraints == theirs.equality_constraints == []
    for name in (
        "adapted",
        "check_input_constraints",
        "flat_args_adapter",
        "_run_with_interpreter",
    ):
        assert getattr(ours, name) == getattr(theirs, name), name
    missing = [n for n in vars(theirs) if not n.startswith("_") and not hasattr(ours, n)]
    assert not missing
    for at, (a, b) in {
        n: (m, t) for (n, m), (_, t) in zip(parts(ours), parts(theirs), strict=True)
    }.items():
        missing = [n for n in vars(b) if not n.startswith("_") and not hasattr(a, n)]
        assert not missing, at
    if program is not None:
        assert_type_names(ours, program)
        assert_values_are_the_programs(ours, program)
        assert set(ours.meta) - {"unflattened_module"} == set(theirs.meta) - {"unflattened_module"}


# ---- what it computes ---------------------------------------------------------------------------


def leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(value)


def assert_same_outputs(ours: Any, expected: Any, *, exact: bool = False, at: str = "") -> None:
    assert pytree.tree_structure(ours) == pytree.tree_structure(expected), at
    tolerance = {"rtol": 0, "atol": 0} if exact else {}
    for a, b in zip(leaves(ours), leaves(expected), strict=True):
        assert type(a) is type(b) or isinstance(b, torch.Tensor), f"{at}: {type(a)} != {type(b)}"
        if isinstance(b, torch.Tensor):
            assert a.requires_grad == b.requires_grad, f"{at}: requires_grad"
            torch.testing.assert_close(a.detach(), b.detach(), equal_nan=True, **tolerance)
        else:
            assert a == b, at


def backward(outputs: Any, inputs: Iterable[Any], module: Module) -> dict[str, Any]:
    """Gradients of the sum of the outputs, by name: of the inputs, and of the parameters."""
    total = sum(
        (leaf * torch.linspace(0.5, 1.5, leaf.numel()).view(leaf.shape).to(leaf.dtype)).sum()
        for leaf in leaves(outputs)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    )
    if not isinstance(total, torch.Tensor):
        return {}
    total.backward()
    named = {f"input {i}": leaf.grad for i, leaf in enumerate(inputs) if is_state(leaf)}
    named |= {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return {name: gradient for name, gradient in named.items() if gradient is not None}


def fresh(value: Any, *, gradients: bool = False) -> Any:
    """A copy of inputs, each with its own storage."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return copy.deepcopy(leaf)
        result = leaf.detach().clone()
        return result.requires_grad_() if gradients and leaf.is_floating_point() else result

    return pytree.tree_map(copied, value)


def run(
    module: Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    gradients: bool = False,
) -> tuple[Any, Any, dict[str, Any]]:
    """Outputs, the inputs after the call, and gradients, from fresh inputs and a fixed seed."""
    args, named = fresh((args, dict(kwargs or {})), gradients=gradients)
    torch.manual_seed(0)
    outputs = module(*args, **named)
    inputs = leaves((args, named))
    return outputs, inputs, backward(outputs, inputs, module) if gradients else {}


def assert_runs_as_eager(
    ours: Module,
    eager: Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    gradients: bool = False,
    calls: int = 2,
    exact: bool = False,
) -> None:
    """Assert equal outputs, gradients and writes to inputs and buffers, in each of several calls.

    Both modules must begin with equal state, which the calls may change.
    """
    for call in range(calls):
        for module in (ours, eager):
            module.zero_grad()
        wanted = run(eager, args, kwargs, gradients=gradients)
        got = run(ours, args, kwargs, gradients=gradients)
        assert_same_outputs(got[0], wanted[0], exact=exact, at=f"call {call}: outputs")
        for a, b in zip(got[1], wanted[1], strict=True):
            assert_same_outputs(a, b, at=f"call {call}: inputs after the call")
        if gradients:
            assert got[2].keys() == wanted[2].keys()
            torch.testing.assert_close(got[2], wanted[2])
        mine, other = dict(ours.state_dict()), dict(eager.state_dict())
        for name in other.keys() & mine.keys():
            torch.testing.assert_close(mine[name], other[name], equal_nan=True, msg=name)


# ---- the caller's program -----------------------------------------------------------------------


def snapshot(program: ExportedProgram) -> list[Any]:
    """Everything of a program that unflatten must not change: objects by identity, and text."""
    signature = program.graph_signature
    graphs = [m for m in program.graph_module.modules() if isinstance(m, GraphModule)]
    tensors = [*program.state_dict.items(), *program.constants.items()]
    return [
        [(id(m), id(m.graph), str(m.graph), id(type(m).__dict__.get("forward"))) for m in graphs],
        [
            (n, n.args, n.kwargs, id(n.meta), [(k, id(v)) for k, v in n.meta.items()])
            for m in graphs
            for n in m.graph.nodes
        ],
        (id(signature), id(signature.input_specs), id(signature.output_specs), repr(signature)),
        [id(spec) for spec in (*signature.input_specs, *signature.output_specs)],
        (id(program.module_call_graph), repr(program.module_call_graph)),
        (id(program.graph_module.meta), dict(program.graph_module.meta)),
        [
            (n, id(t), getattr(t, "_version", 0), id(getattr(t, "grad_fn", None)))
            for n, t in tensors
        ],
        [t.detach().clone() if isinstance(t, torch.Tensor) else None for _, t in tensors],
        repr(program.range_constraints),
        sorted(vars(program)),
    ]


def assert_untouched(program: ExportedProgram, before: list[Any]) -> None:
    after = snapshot(program)
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if index == 7:
            for a, b in zip(old, new, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert old == new, f"the program was changed (item {index} of its snapshot)"
