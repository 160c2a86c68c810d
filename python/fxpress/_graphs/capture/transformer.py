"""Rewrite captured graphs, so that they have the inputs and outputs of the user's callable.

Captures use `rewrite_captured`, in C++. Users' subclasses use `DynamoGraphTransformer`, in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node, Proxy

from fxpress import _native
from fxpress._graphs.capture.root_names import clean_nn_module_stack_and_source_fn, clean_targets
from fxpress._torch import capture as compat
from fxpress._torch import native_tables
from fxpress._torch.capture import LocalSource, birth_rules

KEPT_META = ("dynamo_flat_name_to_original_fqn", "dynamo_compile_id")

_FLAT_ARGUMENTS = "flat_args"  # the parameter of ModuleToTrace.forward


def check_dims(flat_inputs: list[Any], dynamic_dims: list[set[int]]) -> None:
    """Raise AssertionError unless `dynamic_dims` has one item for each flat input."""
    if len(dynamic_dims) != len(flat_inputs):
        raise AssertionError(
            f"expected dynamic dimensions of {len(flat_inputs)} inputs, got {len(dynamic_dims)}"
        )


def input_meta(
    value: Any, dynamic_dims: set[int], original: Node | None, fake_mode: Any
) -> dict[str, Any]:
    """Return the meta of the placeholder for one flat input."""
    before = original.meta if original is not None else {}
    meta = {key: item for key, item in before.items() if key != "val"}
    if fake_mode is not None and isinstance(value, torch.Tensor):
        meta["val"] = compat.fake_input(fake_mode, value, dynamic_dims)
    else:
        meta["val"] = getattr(value, "val", value)  # Dynamo's wrapped ints have `val`
    return meta


def capture_value(module: GraphModule, position: int, placeholder: Node, source: Any) -> str | None:
    """Store a placeholder's value as an attribute of the module, unless the value is an input.

    `source` is Dynamo's source of the value. Returns the attribute's name, or None for an input.
    """
    if source is None or isinstance(source, compat.GetItemSource):
        return None
    value = captured_value(placeholder)
    if value is None:
        return None
    name = f"_captured_{position}"
    if isinstance(value, torch.Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)
    return name


def attribute_of_input(source: Any) -> tuple[int, list[str]] | None:
    """Return (0, ["a", "b"]) for Dynamo's source `flat_args[0].a.b`; None for other sources."""
    path: list[str] = []
    while isinstance(source, compat.AttrSource):
        path.insert(0, source.member)
        source = source.base
    if not (path and isinstance(source, compat.GetItemSource)):
        return None
    base = source.base
    is_flat = isinstance(base, LocalSource) and base.is_input and base.local_name == _FLAT_ARGUMENTS
    return (source.index, path) if is_flat else None


def read_from_input(module: GraphModule, held: Node, index: int, path: list[str]) -> None:
    """Replace the get_attr node `held` by nodes that read the attribute path of input `index`."""
    graph = module.graph
    value = graph.find_nodes(op="placeholder")[index]
    with graph.inserting_before(held):
        for member in path:
            value = graph.call_function(getattr, (value, member))
    value.meta = held.meta
    held.replace_all_uses_with(value)
    graph.erase_node(held)
    value.name = held.name
    delattr(module, held.target)


def captured_value(placeholder: Node) -> Any:
    """Return a placeholder's `val`; without `val`, its `example_value`; without both, None."""
    value = placeholder.meta.get("val")
    return placeholder.meta.get("example_value") if value is None else value


class DynamoGraphTransformer(torch.fx.Transformer):  # type: ignore[misc]
    """Rewrite a captured graph to the inputs and outputs of its caller, one node at a time.

    Stands in for `torch._dynamo.functional_export.DynamoGraphTransformer`. Captures use native code
    with the same result.

    Args:
        module: the module that Dynamo captured. Placeholders that are not inputs of the caller,
            such as values from closures, become attributes of the module.
        flat_inputs: the caller's flat inputs; for inputs that the graph uses, Dynamo's examples.
        flat_args_dynamic_dims: for each input, the dimensions whose size is a symbol.
        graph_input_order: index of a flat input -> position of its placeholder in the graph.
        graph_output_map: position of an output of the caller -> (kind, value).
        fake_mode: the fake mode of the capture.
        graph_inputs: position of a placeholder -> Dynamo's source of the placeholder's value.

    Raises:
        AssertionError: `flat_args_dynamic_dims` and `flat_inputs` have different lengths.

    Example:
        >>> from fxpress.functional_export import DynamoGraphTransformer
        >>> graph = torch.fx.Graph()
        >>> graph.output((graph.call_function(torch.sin, (graph.placeholder("l_a_"),)),))
        output
        >>> captured = torch.fx.GraphModule({}, graph)
        >>> for node in list(graph.nodes)[:2]:
        ...     node.meta["example_value"] = x
        >>> outputs = {0: ("graph_out", 0), 1: ("constant", 7)}
        >>> made = DynamoGraphTransformer(captured, [x, 3], [set(), set()], {0: 0}, outputs)
        >>> made.transform()(x, 3)[1]
        7
    """

    def __init__(
        self,
        module: GraphModule,
        flat_inputs: list[Any],
        flat_args_dynamic_dims: list[set[int]],
        graph_input_order: dict[int, int],
        graph_output_map: dict[int, Any],
        fake_mode: Any | None = None,
        graph_inputs: dict[int, Any] | None = None,
    ) -> None:
        super().__init__(module)
        check_dims(flat_inputs, flat_args_dynamic_dims)
        self.flat_inputs = flat_inputs
        self.flat_args_dynamic_dims = flat_args_dynamic_dims
        self.graph_input_order = graph_input_order
        self.graph_output_map = graph_output_map
        self.fake_mode = fake_mode
        self.graph_inputs = graph_inputs or {}
        self.placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self.output_node = next(node for node in module.graph.nodes if node.op == "output")
        self.new_input_nodes: dict[int, Proxy] = {}
        self._create_flattened_inputs()
        self.old_to_new_mapping: dict[Node, Proxy] = {}
        self._create_placeholder_mapping()

    def _original(self, index: int) -> Node | None:
        at = self.graph_input_order.get(index, len(self.placeholders))
        return self.placeholders[at] if at < len(self.placeholders) else None

    def _create_flattened_inputs(self) -> None:
        for i, value in enumerate(self.flat_inputs):
            made = super().placeholder(f"arg_{i}", (), {})
            dims = self.flat_args_dynamic_dims[i]
            made.node.meta.update(input_meta(value, dims, self._original(i), self.fake_mode))
            self.new_input_nodes[i] = made

    def _create_placeholder_mapping(self) -> None:
        for i in self.graph_input_order:
            if (original := self._original(i)) is not None:
                self.old_to_new_mapping[original] = self.new_input_nodes[i]

    def placeholder(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the new placeholder for an input; for other placeholders, a get_attr node."""
        old = self.current_node
        if old in self.old_to_new_mapping:
            return self.old_to_new_mapping[old]
        position = self.placeholders.index(old)
        source = self.graph_inputs.get(position)
        name = capture_value(self.module, position, old, source)
        if name is None:
            return super().placeholder(target, args, kwargs)
        made = self.tracer.create_proxy("get_attr", name, (), {})
        made.node.meta = {**old.meta, "val": captured_value(old)}
        return made

    def output(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Create the output node, which returns computed values, inputs and constants."""
        computed = args[0]
        values: list[Any] = []
        for i in sorted(self.graph_output_map):
            kind, value = self.graph_output_map[i]
            if kind == "graph_out":
                values.append(computed[value])
            elif kind == "input":
                values.append(self.new_input_nodes[value.index])
            elif kind == "constant":
                values.append(value)
        return super().output(target, (tuple(values),), {})

    def run_node(self, n: Node) -> Any:
        """Copy a node with its name and the metadata of its value."""
        self.current_node = n
        made = super().run_node(n)
        if hasattr(made, "node") and made.node is not n:
            for key in compat.VALUE_KEYS:
                if key in n.meta:
                    made.node.meta[key] = n.meta[key]
            if n.op != "output":
                made.node._rename(n.name)
        return made

    def transform(self) -> GraphModule:
        """Return the new module."""
        made = super().transform()
        before = getattr(self.module, "meta", {})
        made.meta.update({key: before[key] for key in KEPT_META if key in before})
        return made


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
    """Return the result of `DynamoGraphTransformer(...).transform()` with clean attribute names."""
    check_dims(flat_inputs, dynamic_dims)
    placeholders = module.graph.find_nodes(op="placeholder")
    known = {i: placeholders[at] for i, at in input_order.items() if at < len(placeholders)}
    inputs = []
    for i, (value, dims) in enumerate(zip(flat_inputs, dynamic_dims, strict=True)):
        original = known.get(i)
        inputs.append(input_meta(value, dims, original, fake_mode))
        if original is not None and "val" in original.meta:
            inputs[-1]["val"] = original.meta["val"]
    # For each placeholder: the index of its flat input, or the name of an attribute, or None.
    replacements: list[int | str | None] = [None] * len(placeholders)
    for i, at in input_order.items():
        if i in known:
            replacements[at] = i
    captured = {}
    for at, placeholder in enumerate(placeholders):
        if replacements[at] is None:
            name = capture_value(module, at, placeholder, sources.get(at))
            replacements[at] = name
            if name is not None:
                attribute = attribute_of_input(sources.get(at))
                captured[name] = captured_value(placeholder), attribute
    made = _native.rewrite_captured(
        module, inputs, replacements, _outputs(output_map), _module_paths(module), birth_rules()
    )
    for node in made.graph.find_nodes(op="get_attr") if captured else ():
        if node.target in captured:
            node.meta["val"], attribute = captured[node.target]
            if attribute is not None:
                read_from_input(made, node, *attribute)
    made.meta.update({key: module.meta[key] for key in KEPT_META if key in module.meta})
    return made


def rewrite_and_clean(module: GraphModule, *plan: Any) -> GraphModule:
    """Return the result of `rewrite_captured`; the user's names replace Dynamo's module names."""
    with _native.GcPause():
        made = rewrite_captured(module, *plan)
        clean_nn_module_stack_and_source_fn(made, True)
        clean_targets(made, ("call_module",))  # rewrite_captured cleans get_attr targets itself
    return made


def _outputs(output_map: dict[int, Any]) -> list[tuple[int, Any]]:
    outputs = []
    for _, (kind, value) in sorted(output_map.items(), key=lambda item: item[0]):
        if kind in _OUTPUT_KINDS:
            outputs.append((_OUTPUT_KINDS[kind], value.index if kind == "input" else value))
    return outputs


def _module_paths(module: GraphModule) -> dict[str, str]:
    """Return {call_module target: first path in `named_modules` of the module at this target}."""
    targets = {node.target: "" for node in module.graph.find_nodes(op="call_module")}
    if not targets:
        return {}
    first: dict[int, str] = {}
    for path, child in module.named_modules():
        first.setdefault(id(child), path)
    return {target: first[id(module.get_submodule(target))] for target in targets}
