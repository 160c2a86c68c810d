"""Give captured graphs the inputs and outputs of the callable that the user calls."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule

from fxpress import _native
from fxpress._graphs.capture.root_names import clean_nn_module_stack_and_source_fn, clean_targets
from fxpress._graphs.capture.transformer import (
    KEPT_META,
    attribute_of_input,
    capture_value,
    captured_value,
    check_dims,
    input_meta,
    read_from_input,
)
from fxpress._torch import native_tables
from fxpress._torch.capture import birth_rules

_OUTPUT_KINDS = {kind: number for number, kind in enumerate(_native.CAPTURED_OUTPUT_KINDS)}
native_tables.fx()


def rewrite_captured(
    module: GraphModule,
    flat_inputs: list[Any],
    dynamic_dims: list[set[int]],
    input_order: dict[int, int],
    output_map: dict[int, Any],
    fake_mode: Any,
    sources: dict[int, Any],
) -> GraphModule:
    """Return the graph module of `DynamoGraphTransformer(...).transform()`, made natively.

    Its attributes are cleaned.
    """
    check_dims(flat_inputs, dynamic_dims)
    placeholders = module.graph.find_nodes(op="placeholder")
    known = {i: placeholders[at] for i, at in input_order.items() if at < len(placeholders)}
    inputs = []
    for i, (value, dims) in enumerate(zip(flat_inputs, dynamic_dims, strict=True)):
        original = known.get(i)
        inputs.append(input_meta(value, dims, original, fake_mode))
        if original is not None and "val" in original.meta:
            inputs[-1]["val"] = original.meta["val"]
    places: list[int | str | None] = [None] * len(placeholders)
    for i, at in input_order.items():
        if i in known:
            places[at] = i
    captured = {}
    for at, placeholder in enumerate(placeholders):
        if places[at] is None:
            name = capture_value(module, at, placeholder, sources.get(at))
            places[at] = name
            if name is not None:
                attribute = attribute_of_input(sources.get(at))
                captured[name] = captured_value(placeholder), attribute
    made = _native.rewrite_captured(
        module, inputs, places, _outputs(output_map), _module_paths(module), birth_rules()
    )
    for node in made.graph.find_nodes(op="get_attr") if captured else ():
        if node.target in captured:
            node.meta["val"], attribute = captured[node.target]
            if attribute is not None:
                read_from_input(made, node, *attribute)
    made.meta.update({key: module.meta[key] for key in KEPT_META if key in module.meta})
    return made


def rewrite_and_clean(module: GraphModule, *plan: Any) -> GraphModule:
    """Return the result of `rewrite_captured`, with the user's module names in stacks and targets.

    The garbage collector is paused meanwhile, because it would visit every new node.
    """
    with _native.GcPause():
        made = rewrite_captured(module, *plan)
        clean_nn_module_stack_and_source_fn(made, True)
        clean_targets(made, ("call_module",))  # those of get_attr are clean
    return made


def _outputs(output_map: dict[int, Any]) -> list[tuple[int, Any]]:
    outputs = []
    for _, (kind, value) in sorted(output_map.items(), key=lambda item: item[0]):
        if kind in _OUTPUT_KINDS:
            outputs.append((_OUTPUT_KINDS[kind], value.index if kind == "input" else value))
    return outputs


def _module_paths(module: GraphModule) -> dict[str, str]:
    """Return target of call_module -> first path at which a tracer finds the same module."""
    targets = {node.target: "" for node in module.graph.find_nodes(op="call_module")}
    if not targets:
        return {}
    first: dict[int, str] = {}
    for path, child in module.named_modules():
        first.setdefault(id(child), path)
    return {target: first[id(module.get_submodule(target))] for target in targets}
