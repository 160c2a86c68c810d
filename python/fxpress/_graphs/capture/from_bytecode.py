"""Create modules that run the graph of a capture, with Dynamo's bytecode before and after it."""

from __future__ import annotations

import copy
import inspect
import keyword
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

from fxpress._base.errors import UnsupportedError
from fxpress._base.interpreter import annotations_of
from fxpress._graphs.capture import bytecode
from fxpress._torch import capture as compat
from fxpress._torch.fx import pytree

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SHARED = ("_parameters", "_buffers", "_non_persistent_buffers_set")
_SHARED_META = ("fake_mode", "tracing_context")  # not copyable, so deep copies share these
_REPLAYS = ("_dynamo_bytecode_flatten", "_dynamo_bytecode_unflatten")


def normalize_graph_module(gm: GraphModule) -> None:
    """Set the `val` of placeholders to Dynamo's example values.

    Stands in for `torch._dynamo.functional_export.normalize_graph_module`.

    Args:
        gm: changed in place.

    Raises:
        KeyError: a placeholder has no example.

    Example:
        >>> from fxpress.functional_export import normalize_graph_module
        >>> graph = torch.fx.Graph()
        >>> node = graph.placeholder("a")
        >>> node.meta["example_value"] = x
        >>> graph.output(node)
        output
        >>> normalize_graph_module(torch.fx.GraphModule({}, graph))
        >>> node.meta["val"] is x
        True
    """
    for node in gm.graph.find_nodes(op="placeholder"):
        node.meta["val"] = node.meta["example_value"]


def _normalize_shuffle_graph(shuffle_gm: GraphModule) -> None:
    """Remove dead code, and register each buffer again under its name.

    Stands in for `torch._dynamo.functional_export._normalize_shuffle_graph`.

    Args:
        shuffle_gm: changed in place; its code is generated again.

    Example:
        >>> from fxpress.functional_export import _normalize_shuffle_graph
        >>> graph = torch.fx.Graph()
        >>> node = graph.placeholder("a")
        >>> unused = graph.call_function(torch.sin, (node,))
        >>> graph.output(node)
        output
        >>> module = torch.fx.GraphModule({}, graph)
        >>> _normalize_shuffle_graph(module)
        >>> list(module.graph.nodes)
        [a, output]
    """
    buffers = dict(shuffle_gm.named_buffers())
    shuffle_gm.graph.eliminate_dead_code()
    shuffle_gm.recompile()
    for name, buffer in buffers.items():
        delattr(shuffle_gm, name)
        setattr(shuffle_gm, name, buffer)


def create_fx_graph_from_captured_output(
    out: compat.CaptureOutput, mod: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> GraphModule:
    """Turn Dynamo's capture of a callable into a module with the callable's signature.

    Stands in for `torch._dynamo.functional_export.create_fx_graph_from_captured_output`.

    Args:
        out: Dynamo's result. Its graph module is changed and returned.
        mod: the callable.
        args, kwargs: the example arguments.

    Raises:
        AssertionError: nothing was computed, or a name of a child of `mod` is already in use.
        UserError: an input has a type that is not allowed in a graph.

    Example:
        >>> from fxpress import functional_export
        >>> made = functional_export.dynamo_graph_capture_for_export(model)(x)  # calls it
        >>> torch.equal(made(x), model(x))
        True
    """
    if out.backend_input is None:
        raise AssertionError("nothing was captured: out.backend_input must not be None")
    captured = out.backend_input
    _, root = compat.get_traced_fn(mod)
    compat.check_inputs(pytree.tree_leaves((args, kwargs)))
    module: GraphModule = captured.graph_module
    if isinstance(root, torch.nn.Module):
        _adopt(root, module)
        _set_traced_hooks_aside(module)
        root = module
    processor = bytecode.InputProcessor(root, len(args), list(kwargs))
    f_globals = out.graph_capture_output.f_globals
    flatten = bytecode.DynamoBytecodeFlatten(processor, out, f_globals)
    unflatten = bytecode.DynamoBytecodeUnflatten(processor, out, f_globals)
    names = compat.argument_names(inspect.signature(mod), args, kwargs)
    module.graph.set_codegen(bytecode._DynamoBytecodeCodeGen(names, flatten, unflatten))
    normalize_graph_module(module)
    for name, replay in zip(_REPLAYS, (flatten, unflatten), strict=True):
        if hasattr(module, name):
            raise AssertionError(f"the captured module already has an attribute {name}")
        setattr(module, name, replay)
    del module._param_name_to_source
    module.recompile()
    type(module).__deepcopy__ = _deepcopy
    captured.fake_mode.allow_non_fake_inputs = True
    module.meta["module_call_specs"] = (
        out.graph_capture_output.output_graph.export_metadata.module_call_spec
    )
    module.meta["fake_mode"] = captured.fake_mode
    module.meta["tracing_context"] = compat.tracing_context(
        captured.fake_mode, captured.tensor_to_context
    )
    return module


def _adopt(root: torch.nn.Module, module: GraphModule) -> None:
    """Copy state, children, attributes and hooks of `root`, the traced module, to `module`."""
    taken = [name for name in root._modules if hasattr(module, name)]
    if taken:
        raise AssertionError(f"submodules would replace attributes of the captured module: {taken}")
    for name in _SHARED:
        setattr(module, name, getattr(root, name))
    module._modules.update(root._modules)
    kept = {*annotations_of(torch.nn.Module), "meta"}
    own = vars(module).keys() & vars(root).keys() - kept
    if isinstance(root, GraphModule):
        kept |= own  # a traced GraphModule has another graph and meta
    else:
        meta = vars(root).get("meta", {})
        hidden = [name for name in sorted(own) if name.startswith("_")]
        if hidden or not isinstance(meta, dict):
            raise UnsupportedError(
                "the captured and the traced module both have the attributes "
                f"{hidden or ['meta']}: rename them in the traced module"
            )
        module.meta = {**meta, **module.meta}
    vars(module).update({k: v for k, v in vars(root).items() if k not in kept})
    module.training = root.training
    for name in _HOOKS:
        setattr(module, name, getattr(root, name).copy())


def _set_traced_hooks_aside(module: GraphModule) -> None:
    """Make calls of a module skip the hooks that were traced: the graph contains their effects."""
    if not (module._forward_hooks or module._forward_pre_hooks):
        return
    wrapped = getattr(module, "_wrapped_call", None)
    if not isinstance(wrapped, compat.WrappedCall) or wrapped.cls_call is not None:
        raise AssertionError(
            f"the class of the captured module must not define __call__: {wrapped}"
        )
    # The hooks stay in the module's dicts, because the bytecode reads values from the dicts.
    wrapped.cls_call = _call_without_hooks


def _call_without_hooks(self: GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Call `forward` without running the traced hooks, but with global hooks and observers."""
    if not compat.does_more_than_forward(self):
        return type(self).forward(self, *args, **kwargs)
    # Module.__call__ must not find the hooks, so the hook dicts are empty until `forward` runs. As
    # in torch, several threads must not call the module at the same time.
    if "forward" in vars(self):
        raise AssertionError("a captured module with hooks must not have an attribute forward")
    hooks = (self._forward_hooks, self._forward_pre_hooks)

    def forward(*args: Any, **kwargs: Any) -> Any:
        self._forward_hooks, self._forward_pre_hooks = hooks
        return type(self).forward(self, *args, **kwargs)

    try:
        vars(self)["forward"] = forward
        self._forward_hooks, self._forward_pre_hooks = type(hooks[0])(), type(hooks[1])()
        return torch.nn.Module.__call__(self, *args, **kwargs)
    finally:
        vars(self).pop("forward")
        self._forward_hooks, self._forward_pre_hooks = hooks


def _deepcopy(self: GraphModule, memo: dict[int, Any]) -> GraphModule:
    """Return a copy that runs the same bytecode on copies of the state."""
    for name in _SHARED_META:
        if name in self.meta:
            memo[id(self.meta[name])] = self.meta[name]
    made = GraphModule.__deepcopy__(self, memo)
    # torch copies only attributes that the graph reads, but the bytecode may read any attribute.
    for name in (*_SHARED, "_modules", *_HOOKS):
        setattr(made, name, copy.deepcopy(getattr(self, name), memo))
    for name, value in vars(self).items():
        if name not in vars(made):
            vars(made)[name] = copy.deepcopy(value, memo)
    _set_traced_hooks_aside(made)
    codegen = made.graph._codegen
    codegen.dynamo_bytecode_flatten = made._dynamo_bytecode_flatten
    codegen.dynamo_bytecode_unflatten = made._dynamo_bytecode_unflatten
    type(made).__deepcopy__ = _deepcopy
    return made


def op_wrapper(op: Any) -> Callable[..., Any]:
    """Return a function that calls an operator, with the parameters of the operator's schema."""
    arguments = op._schema.arguments
    try:
        signature = inspect.Signature([_parameter(each) for each in arguments])
    except ValueError as error:
        raise UnsupportedError(f"{op} does not have a Python signature: {error}") from None
    passed = ", ".join(f"{each.name}={each.name}" for each in arguments)
    names: dict[str, Any] = {"op": op}
    exec(f"def op_overload_wrapper{signature}:\n    return op({passed})\n", names)
    wrapper: Callable[..., Any] = names["op_overload_wrapper"]
    return wrapper


def _parameter(argument: Any) -> inspect.Parameter:
    if keyword.iskeyword(argument.name):  # from Python 3.11 on, inspect raises too
        raise ValueError(f"{argument.name!r} is a keyword")
    parameter = inspect.Parameter(argument.name, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if argument.kwarg_only:
        parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    if argument.has_default_value():
        parameter = parameter.replace(default=argument.default_value)
    return parameter
