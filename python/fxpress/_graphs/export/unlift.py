"""Create the module of an exported program; the module's graph reads state from attributes."""

from __future__ import annotations

import itertools
import types
from typing import Any, TypedDict

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fxpress import _native
from fxpress._graphs.export import state
from fxpress._graphs.unflatten.guards import argument_names, guards_module
from fxpress._graphs.unflatten.inputs import is_parameter_name
from fxpress._torch import deferred_code, native_tables
from fxpress._torch import export as torch_export
from fxpress._torch import fx as torch_fx
from fxpress._torch import unlift as torch_unlift
from fxpress._torch.watching import operation, phase

native_tables.fx()


class Source(TypedDict):
    """The argument of `_native.unlift`; csrc/export/unlift.h describes the fields."""

    graph: torch.fx.Graph
    origin: torch.fx.Graph
    taken: list[str]
    into: torch.fx.Graph
    lifted: list[str | None]
    outputs: list[Any]
    written: list[str | None]
    owner: torch.nn.Module
    state: dict[str, Any]
    module_class: type[torch.fx.GraphModule]
    drop_dead_code: bool
    created: dict[str, object]
    replaced: dict[str, object]


# torch's name for the submodule that checks the inputs. A model may have an attribute `_guards_fn`.
_GUARDS = "_guards_fn"

_STATE = (InputKind.BUFFER, InputKind.CONSTANT_TENSOR, InputKind.PARAMETER, InputKind.CUSTOM_OBJ)


@operation("export.module", lambda made, *_, **__: {"nodes": len(made.graph.nodes)})
def _unlift_exported_program_lifted_states(
    ep: ExportedProgram, check_guards: bool = True
) -> torch.fx.GraphModule:
    """Return the module of an exported program; its code is generated on first access.

    Stands in for `torch.export._unlift._unlift_exported_program_lifted_states`. The program, and
    the bodies of higher-order operators that it shares with the module, are not changed.

    Args:
        ep: the program.
        check_guards: whether the graph calls a module `_guards_fn` that checks the inputs. As in
            torch, the call is left out if the program has no inputs or no example inputs, or if a
            caller is in a file of ExecuTorch, TorchAO or a similar package. Then a hook checks the
            inputs' sizes only.

    Raises:
        KeyError, AssertionError: the program contradicts its signature.
        RuntimeError: the signature writes to a value that is neither a buffer nor an input.
        TypeError: the example inputs do not fit the program's parameters.

    Example:
        >>> from fxpress.export import _unlift_exported_program_lifted_states
        >>> made = _unlift_exported_program_lifted_states(program, check_guards=False)
        >>> torch.allclose(made(x), model(x))
        True
    """
    check_guards = check_guards and torch_unlift.guards_are_welcome()
    return _native.on_unchanged(ep.graph, lambda: _unlifted(ep, check_guards))


def _unlifted(ep: ExportedProgram, check_guards: bool) -> torch.fx.GraphModule:
    ep = torch_export.with_distinct_names(ep)
    cleaned, is_clean = ep, ep.verifiers[0].dialect == "TRAINING"
    if not is_clean:  # the training dialect keeps dead code and tokens
        cleaned = torch_export.without_tokens_and_dead_bodies(ep)
        is_clean = cleaned is not ep
    call = ep.call_spec
    if call.in_spec is None:
        raise AssertionError("ep.call_spec.in_spec cannot be None")
    names = argument_names(call.in_spec, ep.module_call_graph[0].signature)
    with phase("graph"), _native.GcPause():
        codegen = torch_fx.pytree_codegen(names, call.in_spec, call.out_spec)
        module = _module(cleaned, ep.graph, codegen, is_clean)
    _complete(module, cleaned)
    if len(set(names)) != len(names) or not all(map(is_parameter_name, names)):
        deferred_code.materialize(type(module))  # raises SyntaxError
    _add_hooks(module, cleaned)
    state.keep_constants(module, cleaned)
    module.meta.update(cleaned.graph_module.meta)
    for child in module.children():
        if isinstance(child, torch.fx.GraphModule):
            deferred_code.refresh(child)
    if check_guards and ep.example_inputs:
        with phase("guards"):
            _add_guards(module, ep)
    elif hasattr(module, _GUARDS):  # then `check_inputs_hook` checks no sizes
        module.register_forward_pre_hook(torch_unlift.check_input_constraints, with_kwargs=True)
    return module


def _module(
    program: ExportedProgram, origin: torch.fx.Graph, codegen: Any, is_clean: bool
) -> torch.fx.GraphModule:
    """Write the module's graph, and create the module with this graph and the program's state."""
    graph, signature = program.graph, program.graph_signature
    lifted = state.lifted(program)
    written = torch_unlift.new_graph_like(graph)
    written.set_codegen(codegen)
    return _native.unlift(
        {
            "graph": graph,
            "origin": origin,
            "taken": [] if graph is origin else torch_unlift.used_names(graph),
            "into": written,
            "lifted": [s.target if s.kind in _STATE else None for s in signature.input_specs],
            "outputs": torch_fx.pytree.tree_leaves(graph.output_node().args),
            "written": [
                s.target if s.kind in torch_unlift.MUTATIONS else None
                for s in signature.output_specs
            ],
            "owner": state.owner(program.graph_module, lifted),
            "state": {each.name: each.value for each in lifted},
            "module_class": torch_unlift.StatefulGraphModule,
            "drop_dead_code": not is_clean,
            "created": torch_unlift.CREATED,
            "replaced": torch_unlift.REPLACED,
        }
    )


def _complete(module: torch.fx.GraphModule, program: ExportedProgram) -> None:
    """Add the attributes that the constructor of torch's module class sets."""
    attributes = vars(module)
    _native.insert_after(attributes, torch_fx.GRAPH_SLOT, torch_fx.tree_specs(module.graph))
    attributes["_tracer_cls"] = torch_unlift.tracer_to_keep(module.graph)
    for table in (module._parameters, module._buffers, module._modules):
        for name in attributes.keys() & table.keys():
            setattr(module, name, attributes[name])  # raises TypeError: the state has the same name
    module.range_constraints = program.range_constraints or []
    module.validate_inputs = True


def _add_hooks(module: torch.fx.GraphModule, program: ExportedProgram) -> None:
    kinds = torch_unlift.modules_among_inputs(program.example_inputs)
    module.register_forward_pre_hook(lambda *_: torch_unlift.register_modules_as_nodes(kinds))
    module.register_forward_pre_hook(torch_unlift.check_inputs_hook, with_kwargs=True)
    module.register_forward_hook(
        lambda *_: torch_unlift.deregister_modules_as_nodes(kinds), always_call=True
    )


def _add_guards(module: torch.fx.GraphModule, program: ExportedProgram) -> None:
    """Add a module that checks the inputs, and a node that calls it after the last placeholder."""
    graph = module.graph
    placeholders = graph.find_nodes(op="placeholder")
    if not placeholders:
        return
    numbered = (f"{_GUARDS}_{i}" for i in itertools.count(1))
    free = next(n for n in itertools.chain((_GUARDS,), numbered) if not hasattr(module, n))
    setattr(module, free, guards_module(program, placeholders))
    stack = torch_unlift.first_stack(graph)
    with graph.inserting_after(placeholders[-1]):
        node = graph.call_module(free, tuple(placeholders))
        node.meta["nn_module_stack"] = stack


def _train(self: torch.nn.Module, mode: bool = True) -> None:
    raise NotImplementedError("Calling train() is not supported yet.")


def _eval(self: torch.nn.Module, mode: bool = True) -> None:
    raise NotImplementedError("Calling eval() is not supported yet.")


def module(
    ep: ExportedProgram, *, check_guards: bool = True, engine: bool = False
) -> torch.fx.GraphModule:
    """Return an exported program as a module that has its state.

    Stands in for `torch.export.ExportedProgram.module`.

    The module's graph is a copy of the program's graph that reads parameters, buffers and constants
    from attributes, and writes to buffers and inputs in place. The module shares these tensors with
    the program. The module's Python code is generated on first access.

    Args:
        ep: the program. It is not changed.
        check_guards: check the inputs with a submodule `_guards_fn`, which the graph calls first.
            If False, a forward pre-hook checks sizes and ranges.
        engine: run the graph on fxpress's engine, which is faster and generates no Python code. An
            operator's exception then names the node. Tracers and deep copies run Python code.

    Raises:
        UnsupportedTorchError: the engine is not available for the installed torch.
        KeyError, AssertionError, RuntimeError, TypeError: the program contradicts its signature.

    Example:
        >>> from fxpress.export import module
        >>> torch.allclose(module(program)(x), model(x))
        True
    """
    made = _unlift_exported_program_lifted_states(ep, check_guards=check_guards)
    made.train = types.MethodType(_train, made)
    made.eval = types.MethodType(_eval, made)
    if engine:
        # Imported here, because only the engine needs the extension with libtorch.
        from fxpress._graphs.export.engine import run_on_engine

        run_on_engine(made)
    return made
