"""Convert names of captured nodes, modules and attributes to the user's names.

Dynamo traces the callable as the attribute `_export_root` of `ModuleToTrace`, so names contain
`_export_root`. fxpress removes only this attribute; torch also removes the text from users' names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch.fx import GraphModule

from fxpress import _native
from fxpress._torch import capture as compat

_FQNS = "dynamo_flat_name_to_original_fqn"


def clean_export_root_string(text: str) -> str:
    """Return a name without `_export_root`, the attribute for the callable in `ModuleToTrace`.

    Stands in for `torch._dynamo.functional_export.clean_export_root_string`.

    Args:
        text: the name of a node, a module or an attribute, or a message with names.

    Example:
        >>> from fxpress.functional_export import clean_export_root_string
        >>> clean_export_root_string("L['self']._export_root.layers.0")
        "L['self'].layers.0"
    """
    return _native.clean_name(text)


def clean_nn_module_stack_and_source_fn(
    graph_module: GraphModule, is_inline_builtin: bool = False
) -> GraphModule:
    """Remove `_export_root` from the `nn_module_stack` and `source_fn_stack` of nodes.

    Stands in for `torch._dynamo.functional_export.clean_nn_module_stack_and_source_fn`, and for
    `clean_nn_module_stack`, its name in older releases.

    Args:
        graph_module: changed in place; its nodes get new stacks.
        is_inline_builtin: leave out stack entries of `ModuleToTrace`, whose path is `L['self']`.

    Returns:
        The same module.

    Example:
        >>> from fxpress.functional_export import clean_nn_module_stack_and_source_fn
        >>> graph = torch.fx.Graph()
        >>> node = graph.call_function(torch.ones, (2,))
        >>> key, path = "L__self____export_root_head", "L['self']._export_root.head"
        >>> node.meta["nn_module_stack"] = {key: (path, torch.nn.ReLU)}
        >>> module = clean_nn_module_stack_and_source_fn(torch.fx.GraphModule({}, graph))
        >>> [(key, path) for key, (path, _) in node.meta["nn_module_stack"].items()]
        [('L__self___head', "L['self'].head")]
    """
    _native.clean_stacks(graph_module.graph, is_inline_builtin)
    if _FQNS in graph_module.meta:
        graph_module.meta[_FQNS] = {
            clean_export_root_string(flat): clean_export_root_string(original)
            for flat, original in graph_module.meta[_FQNS].items()
        }
    return graph_module


def clean_export_root(graph_module: GraphModule) -> None:
    """Remove `_export_root` from targets of a graph, and rename the attributes at these targets.

    Stands in for `torch._dynamo.functional_export.clean_export_root`.

    Args:
        graph_module: changed in place; its Python code is not generated again.

    Raises:
        AssertionError: the graph uses an attribute that does not exist, or a target is not a str.

    Example:
        >>> from fxpress.functional_export import clean_export_root
        >>> root = torch.nn.Module()
        >>> root.register_buffer("L__self____export_root_scale", torch.ones(2))
        >>> graph = torch.fx.Graph()
        >>> node = graph.get_attr("L__self____export_root_scale")
        >>> module = torch.fx.GraphModule(root, graph)
        >>> clean_export_root(module)
        >>> node.target, [name for name, _ in module.named_buffers()]
        ('L__self___scale', ['L__self___scale'])
    """
    clean_targets(graph_module, ("get_attr", "call_module"))


def clean_targets(graph_module: GraphModule, ops: tuple[str, ...]) -> None:
    """Clean targets of nodes with an op in `ops`. A second call could change users' names."""
    moved: set[str] = set()
    for node in graph_module.graph.nodes:
        if node.op not in ops:
            continue
        old = node.target
        if not isinstance(old, str):
            raise AssertionError(f"the target of {node} must be a str, not {type(old)}")
        new = clean_export_root_string(old)
        if new == old:
            continue
        if old not in moved:
            _move(graph_module, node.op, old, new)
            moved.add(old)
        node.target = new
        if node.op == "call_module":
            node.name = clean_export_root_string(node.name)


def _move(graph_module: GraphModule, op: str, old: str, new: str) -> None:
    if op == "call_module":
        child = graph_module.get_submodule(old)
        graph_module.delete_submodule(old)
        graph_module.add_submodule(new, child)
        return
    if not hasattr(graph_module, old):
        raise AssertionError(
            f"the module does not have the attribute {old!r}, which its graph uses"
        )
    value = compat.get_attribute(graph_module, old)
    compat.set_attribute(value, graph_module, new)
    compat.delete_attribute(graph_module, old)


def post_process_error_msg(
    constraint_violation_error: compat.ConstraintViolationError,
    func: Callable[..., Any],
    args: Any,
    kwargs: Any,
) -> compat.ConstraintViolationError:
    """Replace Dynamo's names of inputs in an error's message by the user's names.

    Stands in for `torch._dynamo.functional_export.post_process_error_msg`.

    Args:
        constraint_violation_error: changed in place.
        func: the captured callable.
        args, kwargs: the arguments of the callable.

    Returns:
        The same error.

    Example:
        >>> from torch.fx.experimental.symbolic_shapes import ConstraintViolationError
        >>> from fxpress.functional_export import post_process_error_msg
        >>> error = ConstraintViolationError("L['flat_args'][0].size()[0] = 4")
        >>> post_process_error_msg(error, model.forward, (x,), {}).args
        ("L['input'].size()[0] = 4",)
    """
    signature = inspect.signature(func)
    if constraint_violation_error.args:
        message = compat.with_input_names(
            constraint_violation_error.args[0], args, kwargs, signature
        )
        constraint_violation_error.args = (message,)
    return constraint_violation_error
