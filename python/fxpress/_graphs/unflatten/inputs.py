"""Convert the arguments of an unflattened module's call to the inputs of its graph."""

from __future__ import annotations

import inspect
import itertools
import keyword
import logging
from collections.abc import Callable
from typing import Any

import torch.fx

from fxpress._base.errors import UnsupportedError
from fxpress._graphs.unflatten import guards
from fxpress._torch import export as torch_export
from fxpress._torch import fx as torch_fx
from fxpress._torch.fx import GetAttrKey, SequenceKey, TreeSpec, pytree

log = logging.getLogger("torch.export.unflatten")

# Keys of a module's `__dict__`. They contain a dot, so the model's state cannot have these names.
GUARDS = "fxpress.guards"  # the arguments of `guards.as_function`
GUARD_FUNCTION = "fxpress.guard_function"


def _reordered(module: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    if not kwargs:
        return kwargs
    return torch_export.reorder_kwargs(kwargs, module.module_call_graph[0].signature.in_spec)


def process(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Flatten, adapt and check the arguments of a call; return the inputs of the graph."""
    kwargs = _reordered(module, kwargs)
    flat, in_spec = pytree.tree_flatten((args, kwargs))
    expected = module.module_call_graph[0].signature.in_spec
    if in_spec != expected:
        if not module.adapted:
            log.info(
                "Input treespec does not match with exported module's: %s instead of %s. "
                "Adapting flat arg to match exported module's treespec",
                in_spec,
                expected,
            )
        flat = adapt(module, flat, in_spec, args)
        module.adapted = True
    if module.check_input_constraints:
        paths = _adapted_paths(module, flat) if module.adapted else None
        _check(module, flat, paths, (args, kwargs))
    return list(flat)


def adapt(module: Any, flat: list[Any], in_spec: TreeSpec, args: Any) -> list[Any]:
    """Convert flat inputs of the tree spec `in_spec` to flat inputs of the program's tree spec."""
    expected = module.module_call_graph[0].signature.in_spec
    if in_spec == expected:
        return flat
    if module.flat_args_adapter is None:
        raise TypeError(
            "There is no flat args adapter specified. Are you sure you are calling this with the "
            f"right arguments? Got {in_spec}, the program was exported with {expected}"
        )
    flat = module.flat_args_adapter.adapt(
        target_spec=expected, input_spec=in_spec, input_args=flat, metadata=module.meta, obj=args
    )
    if len(flat) != expected.num_leaves:
        raise TypeError(
            "Flat args adaption failed, number of args mismatch "
            f"Adapted: {len(flat)} \nExported module: {expected.num_leaves}"
        )
    return list(flat)


def _adapted_paths(module: Any, flat: list[Any]) -> list[Any]:
    adapter = module.flat_args_adapter
    names = adapter.get_flat_arg_paths() if adapter else []
    if names and len(names) != len(flat):
        raise AssertionError(
            f"flat_arg_paths length {len(names)} does not match flat_args length {len(flat)}"
        )
    return [
        (SequenceKey(idx=i), GetAttrKey(name=names[i] if names else "<unknown location>"))
        for i in range(len(flat))
    ]


def _check(module: Any, flat: list[Any], paths: list[Any] | None, arguments: Any) -> None:
    """Raise an error if flat inputs violate a guard; `paths` are the key paths of the inputs."""
    failed = None
    if GUARDS in vars(module):
        try:
            _guard_function(module)(*flat)
        except Exception as error:
            failed = error
        else:
            return
    placeholders = module.input_placeholders
    if not isinstance(placeholders, list):  # the model has an attribute of this name
        placeholders = module.graph.find_nodes(op="placeholder")
    if (
        failed is None
        and len(flat) == len(placeholders)
        and all(map(_is_static_match, flat, placeholders))
    ):
        return
    if paths is None:
        paths = [path for path, _ in pytree.tree_flatten_with_path(arguments)[0]]
    # As in torch, an error about a size or a type takes precedence over a failed guard.
    torch_export.check_input_constraints(
        placeholders, list(zip(paths, flat, strict=True)), module.range_constraints
    )
    if failed is not None:
        raise failed


def _guard_function(module: Any) -> Callable[..., None]:
    attributes = vars(module)
    function: Callable[..., None] | None = attributes.get(GUARD_FUNCTION)
    if function is None:
        function = attributes[GUARD_FUNCTION] = guards.as_function(*attributes[GUARDS])
    return function


def _is_static_match(value: object, placeholder: torch.fx.Node) -> bool:
    """Return whether a value is a tensor of the placeholder's static size, and needs no check."""
    expected = placeholder.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and torch_fx.is_fake(expected)
        and not expected._has_symbolic_sizes_strides
        and value.shape == expected.shape
    )


def compiled(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the flat inputs of a call that Dynamo traces; Dynamo's guards replace the checks."""
    flat, in_spec = pytree.tree_flatten((args, _reordered(module, kwargs)))
    return adapt(module, flat, in_spec, args)


def traced(module: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return the flat inputs of a call that fx traces; `args` and `kwargs` may each be a Proxy."""
    if isinstance(args, torch.fx.Proxy):
        specs = module.module_call_graph[0].signature.in_spec.children()
        return [leaf for pair in zip((args, kwargs), specs, strict=True) for leaf in _leaves(*pair)]
    return list(pytree.tree_flatten((args, _reordered(module, kwargs)))[0])


def _leaves(proxy: Any, spec: TreeSpec) -> list[Any]:
    result: list[Any] = []
    pending = [(proxy, spec)]
    while pending:
        value, part = pending.pop()
        if part.is_leaf():
            result.append(value)
            continue
        if part.type in (tuple, list):
            keys: list[Any] = list(range(part.num_children))
        elif part.type is dict:
            keys = list(part.context)
        else:
            raise UnsupportedError(
                f"symbolic tracing: expected inputs in tuples, lists and dicts, found {part.type}; "
                "trace a module that calls the program with flat arguments"
            )
        children = zip(keys, part.children(), strict=True)
        pending.extend((value[key], child) for key, child in reversed(list(children)))
    return result


def is_parameter_name(name: str) -> bool:
    """Return whether Python accepts the name for a parameter."""
    return name.isidentifier() and not keyword.iskeyword(name)


def signature(module: Any) -> inspect.Signature:
    """Return a signature for `forward` with the parameter names of the exported module."""
    call = module.module_call_graph[0].signature
    args, kwargs = call.in_spec.children()
    keywords = [name for name in kwargs.context if is_parameter_name(name)]
    # A positional parameter with the name of a keyword parameter is renamed.
    taken = set(keywords)

    def unused(name: str) -> str:
        numbered = (f"{name}_{i}" for i in itertools.count(1))
        result = next(n for n in itertools.chain((name,), numbered) if n not in taken)
        taken.add(result)
        return result

    names = list(call.forward_arg_names or ())[: args.num_children]
    names += [""] * (args.num_children - len(names))
    names = [n if is_parameter_name(n) else f"arg_{i}" for i, n in enumerate(names)]
    kind = inspect.Parameter
    parameters = [kind(unused(name), kind.POSITIONAL_OR_KEYWORD) for name in ("self", *names)]
    parameters += [kind(name, kind.KEYWORD_ONLY) for name in keywords]
    if len(keywords) < kwargs.num_children:
        parameters.append(kind(unused("kwargs"), kind.VAR_KEYWORD))
    return inspect.Signature(parameters)
