"""The transformer of captured graphs, for callers that derive from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node, Proxy

from fxpress._graphs.capture.flat_inputs import (
    capture_value,
    captured_value,
    check_dims,
    input_meta,
)
from fxpress._graphs.capture.rewrite import KEPT_META
from fxpress._torch.capture import VALUE_KEYS


class DynamoGraphTransformer(torch.fx.Transformer):  # type: ignore[misc]
    """Give a captured graph the inputs and outputs of its caller, one node at a time.

    Stands in for `torch._dynamo.functional_export.DynamoGraphTransformer`. Capture itself does the
    same natively, for the graph as a whole.

    Args:
        module: the module that Dynamo captured. Values that its graph takes from elsewhere become
            its attributes.
        flat_inputs: the caller's inputs, flat; Dynamo's examples for the inputs that are used.
        flat_args_dynamic_dims: for each input, the dimensions whose size is a symbol.
        graph_input_order: flat input -> position of its placeholder in the captured graph.
        graph_output_map: position -> (kind, value) of an output of the caller.
        fake_mode: the fake mode of the capture.
        graph_inputs: position of a placeholder -> where Dynamo found its value.

    Raises:
        AssertionError: there are not as many `flat_args_dynamic_dims` as inputs.

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
        """Make the placeholder of an input, or the attribute of a value from elsewhere."""
        old = self.current_node
        if old in self.old_to_new_mapping:
            return self.old_to_new_mapping[old]  # it has the meta already
        position = self.placeholders.index(old)
        source = self.graph_inputs.get(position)
        name = capture_value(self.module, position, old, source)
        if name is None:
            return super().placeholder(target, args, kwargs)
        made = self.tracer.create_proxy("get_attr", name, (), {})
        made.node.meta = {**old.meta, "val": captured_value(old)}
        return made

    def output(self, target: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Make the output node: computed values, inputs and constants."""
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
        """Run a node, and keep its name and the metadata of its value."""
        self.current_node = n
        made = super().run_node(n)
        if hasattr(made, "node") and made.node is not n:
            for key in VALUE_KEYS:
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
