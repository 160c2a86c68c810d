"""Build the decomposed program from templates, or raise UnsafeError if it needs a full trace."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, Node

from fxpress import _native
from fxpress._base.observing.progress import Report
from fxpress._files.serde import native_table
from fxpress._files.serde.checks import to_check
from fxpress._graphs.decompose.calls import calls_of
from fxpress._graphs.decompose.inputs import Input, SizeNodes, input_names, read_inputs
from fxpress._graphs.decompose.names import Naming
from fxpress._graphs.decompose.plan import NeedsTraceError, Plan
from fxpress._graphs.decompose.record import Recorder
from fxpress._graphs.decompose.symbols import Symbols
from fxpress._graphs.decompose.tables import Table
from fxpress._graphs.decompose.template import Template, specs_in
from fxpress._graphs.decompose.values import Facts, Number, Storage, UnsafeError, Value
from fxpress._graphs.decompose.whole import ranges_of
from fxpress._graphs.decompose.write import Sources, Writer
from fxpress._graphs.trace.blocks import fast_tracing
from fxpress._graphs.unflatten.guards import check_own_inputs, user_inputs
from fxpress._torch import decompose as compat
from fxpress._torch import serde
from fxpress._torch import symbols as sizes
from fxpress._torch.decompose import pytree
from fxpress._torch.watching import phase


def check_outputs(plan: Plan, symbols: Symbols) -> None:
    """Raise UnsafeError if torch would add a guard to compare a returned view with its base.

    If the program returns a view of a tensor that it computed, torch checks whether the view is the
    entire tensor. The check adds a guard if the answer depends on the values of symbols.
    """
    if not sizes.has_symbols(symbols.shape_env):
        return
    returned = [v for v in pytree.tree_leaves(plan.output) if type(v) is Value]
    bases = dict(_bases(plan, {value.storage for value in returned}))
    for value in returned:
        base = bases.get(value.storage)
        if base is None or not (value.facts.is_symbolic or base.is_symbolic):
            continue
        if not _is_decided(symbols.facts(value.facts), symbols.facts(base)):
            raise UnsafeError(
                "the program returns a view; symbols decide whether the view covers its entire base"
            )


def _bases(plan: Plan, wanted: set[Storage]) -> Iterator[tuple[Storage, Facts]]:
    """Yield (storage, Facts of its first tensor) for storages in `wanted` that a call creates."""
    for instance in plan.instances:
        count = len(instance.template.fresh)
        inputs = len(instance.storages) - count
        for number, storage in enumerate(instance.storages[inputs:], inputs):
            if storage in wanted:
                yield storage, _first_in(number, instance.template)


def _first_in(storage: int, template: Template) -> Facts:
    for node in template.nodes:
        for spec in specs_in(node.value):
            if spec.storage == storage:
                return spec.facts
    raise AssertionError(f"the template does not have a tensor on storage {storage}")


def _is_decided(view: Facts, base: Facts) -> bool:
    """Return whether a view and its base can be compared without a guard."""
    for of_view, of_base in (
        (view.shape, base.shape),
        (view.strides, base.strides),
        (view.offset, base.offset),
    ):
        equal = sizes.known_equality(of_view, of_base)
        if equal is not True:
            return equal is False
    return True


native_table.fill()


def build_from_templates(
    program: ExportedProgram,
    table: Table,
    custom_triton_ops: bool,
    progress: Report | None,
    naming: Naming | None,
) -> tuple[ExportedProgram, Plan]:
    """Return the decomposed program, and the plan that it was built from."""
    _check(program)
    if naming is not None:
        if naming.known is None and not naming.is_free:
            raise UnsafeError("the sizes are symbolic, and no equal program was traced before")
        if naming.known is not None and naming.known.reason:
            raise UnsafeError(naming.known.reason)
    mode = _fake_mode(program)
    if sizes.has_symbols(mode.shape_env):
        with mode:
            check_own_inputs(program)
    symbols = Symbols(mode.shape_env)
    inputs = read_inputs(program, mode.shape_env)
    environment: dict[Node, Any] = {
        entry.old: entry.old.meta["val"] if entry.value is None else entry.value for entry in inputs
    }
    nodes = [node for node in _native.list_nodes(program.graph) if node.op != "placeholder"]
    traits = (*compat.traits_of(mode), sizes.knowledge(mode.shape_env))
    templates = table.templates_of(traits)
    size_nodes = SizeNodes(inputs, symbols)
    if size_nodes.count > 0 and naming is None:
        raise UnsafeError("the program has a symbol without a range")
    first = len(inputs) + size_nodes.count
    plan = Plan(nodes, environment, first, templates, table.refused, progress)
    fakes = compat.Fakes(mode)
    with phase("plan"), contextlib.suppress(NeedsTraceError):
        plan.advance(None)
    cached = None if plan.is_complete else compat.cached_results(mode)
    try:
        if not plan.is_complete:
            with phase("trace"):
                _trace(plan, fakes, symbols, table, custom_triton_ops)
        check_outputs(plan, symbols)
        with phase("graph"), sizes.without_guards(mode.shape_env):
            made = _make(program, plan, inputs, size_nodes, symbols, fakes, naming)
    except UnsafeError as unsafe:
        if cached is not None:
            # A full trace follows. Restore the caches, because its results depend on them.
            compat.restore_cached_results(mode, cached)
        if naming is not None and naming.known is not None:
            naming.known.reason = str(unsafe)  # so equal programs are traced in full
        raise
    return made, plan


def _trace(
    plan: Plan, fakes: compat.Fakes, symbols: Symbols, table: Table, custom_triton_ops: bool
) -> None:
    """Complete a plan: let torch trace the calls that have no template yet."""
    failed: list[UnsafeError] = []

    def body(tracer: Any, functional_mode: Any) -> None:
        try:
            plan.advance(Recorder(tracer, functional_mode, fakes, symbols))
        except UnsafeError as unsafe:
            failed.append(unsafe)

    with fast_tracing(), fakes.mode, table.guarded.in_force():
        compat.trace(body, fakes.mode, table.others, custom_triton_ops)
    if failed:
        raise failed[0]


def _check(program: ExportedProgram) -> None:
    """Raise UnsafeError for programs and settings that templates do not support."""
    if compat.has_modes():
        raise UnsafeError("a mode of the user is active")
    if setting := compat.changed_setting():
        raise UnsafeError(f"the setting {setting} does not have its default value")
    signature = program.graph_signature
    if any(spec.kind is not OutputKind.USER_OUTPUT for spec in signature.output_specs):
        raise UnsafeError("the program writes to its inputs or has effects")
    if any(isinstance(m, torch.nn.Module) for m in pytree.tree_leaves(program.example_inputs)):
        raise UnsafeError("an input is a module")
    _check_classes(program)
    for node in _native.list_nodes(program.graph):
        if node.op == "call_function" and not node.meta.get("stack_trace"):
            if compat.called_in_forward():
                reason = "torch would take the stack trace of the forward() that is running"
                raise UnsafeError(f"{node.name!r} has no stack trace, so {reason}")
            break


class _NoCalls(compat.TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode that raises for all operator calls."""

    def __torch_dispatch__(self, *_: Any) -> Any:
        raise RuntimeError("creating or flattening an object calls an operator")


def _check_classes(program: ExportedProgram) -> None:
    """Raise UnsafeError if unflattening or flattening the inputs or outputs calls operators.

    torch flattens and unflattens within its trace, so these calls become nodes. For example, the
    DynamicCache of transformers calls `torch.cat`. A class is refused too if an object built from
    parts does not flatten to the same parts.
    """
    call = program.module_call_graph[0].signature
    if call is None:
        return
    for nodes, spec in (
        (user_inputs(program), call.in_spec),
        (program.graph.output_node().args[0], call.out_spec),
    ):
        if compat.has_only_containers(spec):
            continue
        values = [n.meta.get("val") if isinstance(n, Node) else n for n in nodes]
        try:
            with _NoCalls():
                leaves = pytree.tree_leaves(pytree.tree_unflatten(values, spec))
        except Exception as e:
            raise UnsafeError(f"cannot flatten and create an input or output: {e}") from None
        if len(leaves) != len(values) or any(map(operator.is_not, leaves, values)):
            raise UnsafeError(
                "an input or output flattens to other values than those it was created from"
            )


def _fake_mode(program: ExportedProgram) -> Any:
    """Return the fake mode of the program's inputs; UnsafeError unless there is exactly one."""
    values = [n.meta.get("val") for n in _native.list_nodes(program.graph) if n.op == "placeholder"]
    modes = {v.fake_mode for v in values if type(v) is compat.FakeTensor}
    if len(modes) != 1:
        raise UnsafeError(f"expected one fake mode of the program's inputs, found {len(modes)}")
    (mode,) = modes
    shape_env = mode.shape_env
    if shape_env is not None and shape_env.deferred_runtime_asserts:
        raise UnsafeError("the program has assertions on symbols")
    return mode


def _make(
    program: ExportedProgram,
    plan: Plan,
    inputs: list[Input],
    size_nodes: SizeNodes,
    symbols: Symbols,
    fakes: compat.Fakes,
    naming: Naming | None,
) -> ExportedProgram:
    """Write the decomposed program from its plan."""
    with _native.GcPause():
        names = input_names(program, inputs)
        graph = Graph()
        sources = Sources(program.graph, names)
        output = Writer(plan, inputs, size_nodes, sources, symbols, fakes, graph).write(names)
        if naming is not None:
            naming.instantiated(graph)
        old = program.graph.output_node()
        output.meta = {**old.meta, "from_node": sources.of_unlifted(old)}
        for key in ("nn_module_stack", "stack_trace"):
            output.meta.pop(key, None)
        signature = _signature(inputs, names, output)
        root = _native.make_graph_module(torch.nn.Module(), graph)
        root.meta.update(program.graph_module.meta)
        fields: dict[str, Any] = {
            "graph_signature": signature,
            "state_dict": {**program.state_dict},
            "range_constraints": ranges_of(program, fakes.mode.shape_env),
            "module_call_graph": calls_of(program, root, signature),
            "example_inputs": program.example_inputs,
            "constants": {**program.constants},
            "verifiers": [compat.Verifier],
        }
        checked = to_check(root, fields["verifiers"], fields["state_dict"], fields["constants"])
        is_valid = checked is not None and _native.is_surely_valid(
            signature, fields["module_call_graph"], checked
        )
        guards = compat.guards_code(fakes.mode.shape_env, root)
        return serde.make_program({"root": root, "guards_code": guards, **fields}, is_valid)


def _signature(inputs: list[Input], names: list[str], output: Node) -> ExportGraphSignature:
    input_specs = []
    for entry, name in zip(inputs, names, strict=True):
        spec = entry.spec
        argument: Any = TensorArgument(name=name)
        if type(entry.value) is Number:
            argument = SymIntArgument(name=name)
        elif entry.value is None:
            argument = ConstantArgument(name=name, value=entry.old.meta["val"])
        is_buffer = spec.kind is InputKind.BUFFER
        persistent = spec.persistent is not False if is_buffer else None
        input_specs.append(InputSpec(spec.kind, argument, spec.target, persistent))
    output_specs = []
    for value in pytree.tree_leaves(output.args):
        argument = (
            _KINDS.get(type(value.meta.get("val")), TensorArgument)(name=value.name)
            if isinstance(value, Node)
            else ConstantArgument(name="", value=value)
        )
        output_specs.append(OutputSpec(OutputKind.USER_OUTPUT, argument, None))
    return ExportGraphSignature(input_specs, output_specs)


_KINDS: dict[type, Any] = {
    torch.SymInt: SymIntArgument,
    torch.SymFloat: SymFloatArgument,
    torch.SymBool: SymBoolArgument,
}
