"""Decompose a program by a full trace with torch's functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import CustomObjArgument, ExportGraphSignature
from torch.fx import GraphModule, Node

from fxpress._graphs.decompose import joint
from fxpress._graphs.decompose.calls import calls_of
from fxpress._graphs.decompose.memo import Memo, use_memo
from fxpress._graphs.decompose.names import Naming
from fxpress._graphs.export.unlift import module as module_of
from fxpress._torch import decompose_whole as compat
from fxpress._torch.decompose import has_modes, pytree
from fxpress._torch.fakes import fake_result

_Table = dict[Any, Callable[..., Any]]
# The graph module, signature, state_dict and constants of a decomposed program.
Parts = tuple[GraphModule, ExportGraphSignature, dict[str, Any], dict[str, Any]]


def traced(
    program: ExportedProgram,
    overridden: contextlib.AbstractContextManager[None],
    table: _Table,
    loss: int | None,
    custom_triton_ops: bool,
    *,
    uses_templates: bool,
    naming: Naming | None,
) -> tuple[ExportedProgram, int]:
    """Return the decomposed program, and how many calls fxpress repeated without torch's code.

    Args:
        program: the program. If it is a joint graph, the buffers of its graph module are removed,
            as in torch. Otherwise, the program is not changed.
        overridden: a block in which the table's functions override composite operators.
        table: the decompositions of operators that are not composite.
        loss: index of the output that is the loss of a joint graph; None: build no joint graph.
        custom_triton_ops: whether to decompose custom operators that call Triton kernels.
        uses_templates: whether fxpress may repeat equal calls without torch's code (see `memo`).
        naming: names the nodes of a program with symbolic sizes; None for other programs.
    """
    instantiated = 0
    number = 0 if naming is None else naming.begin()
    if compat.is_joint(program, loss):
        parts = joint.parts(program, overridden, table, loss, custom_triton_ops)
    else:
        with _memo_of(program, uses_templates) as memo:
            parts = _inference_parts(program, overridden, table, custom_triton_ops, memo)
        instantiated = 0 if memo is None else memo.instantiated
    module, signature, state, constants = parts
    if naming is not None:
        naming.traced(module, signature, number)
    calls = calls_of(program, module, signature)
    module.meta.update(program.graph_module.meta)
    made = ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints=ranges_of(program, compat.shape_env_of(module)),
        module_call_graph=calls,
        example_inputs=program.example_inputs,
        constants=constants,
    )
    return made, instantiated


@contextlib.contextmanager
def _memo_of(program: ExportedProgram, uses_templates: bool) -> Iterator[Memo | None]:
    """Yield the Memo that repeats calls in traces of the block; None: no calls are repeated."""
    # A mode of the user may observe calls, so torch has to run them.
    if not uses_templates or has_modes() or fake_result is None:
        yield None
        return
    memo = Memo()
    with use_memo(memo):
        yield memo


def ranges_of(program: ExportedProgram, shape_env: Any) -> dict[Any, Any]:
    """Return the program's range constraints, and the ranges that a trace found for symbols."""
    if shape_env is None:
        return {}
    replaced = shape_env.replacements
    ranges = {s: limits for s, limits in program.range_constraints.items() if s not in replaced}
    for symbol, limits in shape_env.var_to_range.items():
        if symbol not in replaced:
            ranges.setdefault(symbol, limits)
    return ranges


def _state_of(module: torch.nn.Module) -> dict[str, Any]:
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _real_input(program: ExportedProgram, node: Node) -> Any:
    """Return the value for an input in a trace: the real object for custom objects, else `val`."""
    value = node.meta["val"]
    if not isinstance(value, CustomObjArgument):
        return value
    return program.constants[value.name] if value.fake_val is None else value.fake_val.real_obj


def _inference_parts(
    program: ExportedProgram,
    overridden: contextlib.AbstractContextManager[None],
    table: _Table,
    custom_triton_ops: bool,
    memo: Memo | None,
) -> Parts:
    module = module_of(program)
    wrapped = _state_of(module)
    compat.unwrap_subclasses(module)
    unwrapped = _state_of(module)
    mode = compat.fake_mode_of(program.graph_module)
    compat.returns_a_tuple(module)
    old = program.graph_signature
    # Constants are traced as buffers, so that writes to them are detected.
    compat.constants_as_attributes(old, program.constants, module)
    registered = compat.constants_as_buffers(module, program.state_dict, old.non_persistent_buffers)
    state = compat.make_state_fake(mode, module)
    meta = compat.gather_meta_of_state(module)
    inputs = [_real_input(program, n) for n in module.graph.nodes if n.op == "placeholder"]
    args, kwargs = pytree.tree_unflatten(inputs, module._in_spec)
    flat = (*args, *kwargs.values())
    with (
        compat.tracing_of(mode, program.example_inputs),
        overridden,
        compat.fake_objects(module, flat, {}, mode) as faked,
    ):
        patched, fake_args, fake_kwargs, attributes, real_of = faked
        if memo is not None:
            memo.watch(patched.graph)
        made = compat.trace_inference(
            patched, fake_args, state, attributes, table, custom_triton_ops
        )
        found = {
            name: real_of[value] if isinstance(value, compat.FakeScriptObject) else value
            for name, value in made.constants.items()
        }
        new = made.gm
        signature = compat.buffers_as_constants(made.sig, registered)
        compat.give_meta_to_state(meta, new, signature)
        signature = compat.mark_non_persistent(old, signature)
        constants = {**program.constants, **found}
        constants.update(compat.lift_constants(new, signature, attributes))
        compat.name_placeholders(new, signature, patched, fake_args, fake_kwargs, state, constants)
    compat.verify_meta(new, signature)
    _drop_copies(new, signature)
    return new, signature, _new_state(program, wrapped, unwrapped), constants


def _drop_copies(module: GraphModule, signature: ExportGraphSignature) -> None:
    """Replace each output `copy(state, value)`, the new value of a state tensor, by `value`."""
    written = {**signature.buffers_to_mutate, **signature.parameters_to_mutate}
    graph = module.graph
    with module._set_replace_hook(signature.get_replace_hook()):
        for value in pytree.tree_leaves(graph.output_node().args):
            is_copy = isinstance(value, Node) and value.name in written
            if is_copy and value.op == "call_function" and value.target is _COPY:
                value.replace_all_uses_with(value.args[1])
                graph.erase_node(value)
        module.recompile()


_COPY = torch.ops.aten.copy.default


def _new_state(
    program: ExportedProgram, wrapped: dict[str, Any], unwrapped: dict[str, Any]
) -> dict[str, Any]:
    """Return the decomposed program's state_dict: inner tensors replace tensor subclasses."""
    parts = {name: value for name, value in unwrapped.items() if name not in wrapped}
    state = {**program.state_dict, **parts}
    for name, value in wrapped.items():
        if name not in state:
            assert not isinstance(value, torch.nn.Parameter), f"{name!r} is not in the state"
        elif name not in unwrapped:
            del state[name]
    return state
