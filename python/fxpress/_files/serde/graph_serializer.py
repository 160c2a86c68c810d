"""Convert graphs, or single parts of graphs, to objects of torch's schema."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import torch

from fxpress import _native
from fxpress._files.serde import facts, operators
from fxpress._files.serde.program import graph_metadata
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._files.serde.treespecs import TreeSpecWriter
from fxpress._torch import serde as compat

_schema = compat.schema
_signature = compat.graph_signature


@dataclasses.dataclass
class GraphState:
    """The state of the graph that is being written.

    Stands in for `torch._export.serde.serialize.GraphState`.
    """

    inputs: list[Any] = dataclasses.field(default_factory=list)
    outputs: list[Any] = dataclasses.field(default_factory=list)
    nodes: list[Any] = dataclasses.field(default_factory=list)
    tensor_values: dict[str, Any] = dataclasses.field(default_factory=dict)
    sym_int_values: dict[str, Any] = dataclasses.field(default_factory=dict)
    sym_bool_values: dict[str, Any] = dataclasses.field(default_factory=dict)
    sym_float_values: dict[str, Any] = dataclasses.field(default_factory=dict)
    is_single_tensor_return: bool = False
    custom_obj_values: dict[str, Any] = dataclasses.field(default_factory=dict)


@final
class GraphModuleSerializer(metaclass=compat.Final):  # type: ignore[metaclass]
    """Write graph modules, or single parts of them, as objects of torch's schema.

    Every method encodes its arguments natively, and adds the values that nodes define to
    `graph_state`. Parts may be written in any order, because the metadata of a node shows whether
    the node is a symbolic number.

    Stands in for `torch._export.serde.serialize.GraphModuleSerializer`.

    Args:
        graph_signature: the signature for `serialize`; other methods do not use it.
        module_call_graph: the module calls for `serialize`.

    Attributes:
        graph_state: the state of the current graph.
        graph_signature, module_call_graph: the arguments.
        custom_objs: name -> custom object that is an argument of a node.
        duplicate_getitem_nodes: name of a getitem node -> name of the earlier getitem node for the
            same result, which replaces it in the file.

    Example:
        >>> from fxpress.serialize import GraphModuleSerializer
        >>> writer = GraphModuleSerializer(program.graph_signature, program.module_call_graph)
        >>> stored = writer.serialize(program.graph_module)
        >>> stored.graph.nodes[0].target
        'torch.ops.aten.layer_norm.default'
    """

    def __init__(self, graph_signature: Any, module_call_graph: list[Any]) -> None:
        self.graph_state = GraphState()
        self.graph_signature = graph_signature
        self.module_call_graph = module_call_graph
        self.custom_objs: dict[str, Any] = {}
        self.duplicate_getitem_nodes: dict[str, str] = {}
        self._treespecs = TreeSpecWriter()

    @property
    def treespec_namedtuple_fields(self) -> dict[str, Any]:
        """Return, by name of their type, the named tuples in the tree specs written so far."""
        fields = self._treespecs.fields
        return {name: _schema.NamedTupleDef(field_names=names) for name, names in fields.items()}

    @contextlib.contextmanager
    def save_graph_state(self) -> Iterator[None]:
        """Run the block with a new `graph_state`, then restore the old one."""
        saved, self.graph_state = self.graph_state, GraphState()
        try:
            yield
        finally:
            self.graph_state = saved

    def _part(self, kind: str, *values: Any) -> Any:
        results: list[tuple[str, Any]] = []
        document = SCHEMA.encode_part(
            kind, values, self.custom_objs, self._treespecs, results, self.duplicate_getitem_nodes
        )
        for name, value in results:
            self.serialize_output(name, value)
        return document.field(CLASSES, "", True)

    def _expect(self, node: torch.fx.Node, op: str) -> None:
        if node.op != op:
            raise AssertionError(f"expected {op} op, got {node.op}")

    def handle_placeholder(self, node: torch.fx.Node) -> None:
        """Add an input to the current graph.

        Raises:
            AssertionError: `node` is not a placeholder, or its value is of an unknown type.
        """
        self._expect(node, "placeholder")
        value = node.meta["val"]
        if isinstance(value, _signature.CustomObjArgument):
            kept = self.serialize_script_obj_meta(value)
            made = _schema.Argument.create(
                as_custom_obj=_schema.CustomObjArgument(node.name, value.class_fqn)
            )
            self.graph_state.custom_obj_values[node.name] = kept
        elif isinstance(value, (torch.Tensor, *compat.SYMBOLIC_NUMBERS)):
            made = self.serialize_output(node.name, value)
        elif value is None or isinstance(value, (int, float, str)):
            made = self.serialize_input(value)
        else:
            raise AssertionError(f"Unimplemented graph input type: {value!r}")
        self.graph_state.inputs.append(made)

    def handle_output(self, node: torch.fx.Node) -> None:
        """Set the outputs of the current graph; AssertionError if `node` is not an output node."""
        self._expect(node, "output")
        if len(node.args) != 1:
            raise AssertionError(f"FX.Node's args should have one arg, got {len(node.args)}")
        returned = node.args[0]
        single = isinstance(returned, torch.fx.Node)
        if not single and not isinstance(returned, (tuple, list)):
            raise AssertionError(f"expected tuple or list, got {type(returned)}")
        values: Any = (returned,) if single else returned
        self.graph_state.outputs = [self.serialize_input(value) for value in values]
        if single:
            self.graph_state.is_single_tensor_return = True

    def handle_call_function(self, node: torch.fx.Node) -> None:
        """Add a node, and the values that it defines, to the current graph.

        A getitem node adds nothing, because it is written with the node whose result it takes.

        Raises:
            AssertionError: `node` is not a call_function node.
            SerializeError: the node cannot be written; the message names it.
        """
        self._expect(node, "call_function")
        if not operators.is_getitem(node.target):
            self.graph_state.nodes.append(self._part("node", node))

    def handle_get_attr(self, node: torch.fx.Node) -> None:
        """Do nothing, because attributes are written where they are used."""

    def serialize_operator(self, target: Any) -> str:
        """Return the name of an operator or function."""
        return operators.operator_name(target)

    def serialize_metadata(self, node: torch.fx.Node) -> dict[str, str]:
        """Return the metadata of a node as stored in a file."""
        found: dict[str, str] = self._part("metadata", node)
        return found

    def _serialize_from_node(self, from_node: list[Any] | None) -> list[dict[str, Any]] | None:
        """Return the `NodeSource` objects of a node as dicts; graph ids are not renumbered."""
        if from_node is None:
            return None
        return [source.to_dict() for source in from_node if isinstance(source, compat.NodeSource)]

    def serialize_input(self, arg: Any, arg_type: Any | None = None) -> Any:
        """Return the `schema.Argument` of an argument.

        Args:
            arg: a node or a constant, or a container of them.
            arg_type: the type of the argument in the operator's schema. It determines the type of
                an empty list.

        Raises:
            SerializeError: the schema does not support arguments of this type.
        """
        return self._part("argument", arg, arg_type)

    def serialize_inputs(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> list[Any]:
        """Return the arguments that a call passes, in the order of the operator's schema.

        Raises:
            AssertionError: the operator does not have a schema.
        """
        described = operators.describe_call(target, args)
        found: list[Any] = self._part("inputs", described, args, dict(kwargs or {}))
        return found

    def serialize_sym_op_inputs(self, op: Any, args: Sequence[Any]) -> list[Any]:
        """Return the arguments of a function on numbers, with the names of its parameters.

        Raises:
            AssertionError: `op` is not a function on numbers.
        """
        found: list[Any] = self._part("inputs", operators.describe_symbolic(op), args, {})
        return found

    def serialize_hoo_inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments of a higher-order operator, which does not have a schema."""
        described = operators.described_kind(operators.Kind.HIGHER_ORDER)
        found: list[Any] = self._part("inputs", described, args, dict(kwargs))
        return found

    def is_inductor_sym_int_arg(self, arg: Any) -> bool:
        """Return whether an argument of Inductor is an int or a `torch.SymInt`."""
        return type(arg) is int or isinstance(arg, torch.SymInt)

    def _is_in(self, arg: Any, table: dict[str, Any]) -> bool:
        return isinstance(arg, torch.fx.Node) and arg.name in table

    def is_sym_int_arg(self, arg: Any) -> bool:
        """Return whether an argument is an int, or a node with an integer as its value."""
        return type(arg) is int or self._is_in(arg, self.graph_state.sym_int_values)

    def is_sym_float_arg(self, arg: Any) -> bool:
        """Return whether an argument is a float, or a node with a float as its value."""
        return isinstance(arg, float) or self._is_in(arg, self.graph_state.sym_float_values)

    def is_sym_bool_arg(self, arg: Any) -> bool:
        """Return whether an argument is a bool, or a node with a bool as its value."""
        return isinstance(arg, bool) or self._is_in(arg, self.graph_state.sym_bool_values)

    def _output_node_at_index(self, node: torch.fx.Node, index: Any) -> torch.fx.Node | None:
        """Return the first getitem node for a result; record further such nodes as duplicates."""
        for user in node.users:
            if not operators.is_getitem(user.target):
                raise AssertionError(f"{user} is not a getitem node")
        takers = [user for user in node.users if user.args[1] == index]
        self.duplicate_getitem_nodes.update((user.name, takers[0].name) for user in takers[1:])
        return takers[0] if takers else None

    def _output_node_name_at_index(self, node: torch.fx.Node, index: Any) -> str:
        """Return the name of a result's getitem node, or a new name if there is no such node."""
        taker = self._output_node_at_index(node, index)
        return f"{node.name}_unused_{index}" if taker is None else taker.name

    def serialize_outputs(self, node: torch.fx.Node) -> list[Any]:
        """Return the outputs of a call, with the names of the nodes that unpack its result.

        Raises:
            AssertionError: the operator does not have a schema.
        """
        operators.describe_call(node.target, node.args)  # raises AssertionError without a schema
        return self.serialize_hoo_outputs(node)

    def serialize_hoo_outputs(self, node: torch.fx.Node) -> list[Any]:
        """Return the outputs of a higher-order operator, which does not have a schema."""
        found: list[Any] = self._part("outputs", node)
        return found

    def _handle_getitem_users(self, node: torch.fx.Node) -> list[Any]:
        """Return the outputs of a node that returns several tensors."""
        return [
            self.serialize_tensor_output(self._output_node_name_at_index(node, index), value)
            for index, value in enumerate(node.meta["val"])
        ]

    def _note(self, table: str, name: str, value: Any) -> None:
        noted = getattr(self.graph_state, table)
        if name in noted:
            raise AssertionError(f"name {name!r} already in {table}")
        noted[name] = value

    def serialize_tensor_output(self, name: str, meta_val: torch.Tensor) -> Any:
        """Add a tensor to the current graph; AssertionError if its name is in use."""
        self._note("tensor_values", name, facts.serialize_tensor_meta(meta_val))
        return _schema.TensorArgument(name=name)

    def serialize_sym_int_output(self, name: str, meta_val: Any) -> Any:
        """Add an integer to the current graph; AssertionError if its name is in use."""
        self._note("sym_int_values", name, facts.serialize_sym_int(meta_val))
        return _schema.SymIntArgument.create(as_name=name)

    def serialize_sym_float_output(self, name: str, meta_val: Any) -> Any:
        """Add a float to the current graph; AssertionError if its name is in use."""
        self._note("sym_float_values", name, facts.serialize_sym_float(meta_val))
        return _schema.SymFloatArgument.create(as_name=name)

    def serialize_sym_bool_output(self, name: str, meta_val: Any) -> Any:
        """Add a bool to the current graph; AssertionError if its name is in use."""
        self._note("sym_bool_values", name, facts.serialize_sym_bool(meta_val))
        return _schema.SymBoolArgument.create(as_name=name)

    def serialize_output(self, name: str, meta_val: Any) -> Any:
        """Add a value to the current graph, and return the `schema.Argument` that names it.

        Raises:
            AssertionError: the name is in use.
            SerializeError: the value is not a tensor, a number, a bool or None.
        """
        create = _schema.Argument.create
        if meta_val is None:
            return create(as_none=True)
        if isinstance(meta_val, torch.Tensor):
            return create(as_tensor=self.serialize_tensor_output(name, meta_val))
        if isinstance(meta_val, (bool, torch.SymBool)):
            return create(as_sym_bool=self.serialize_sym_bool_output(name, meta_val))
        if isinstance(meta_val, (int, torch.SymInt)):
            return create(as_sym_int=self.serialize_sym_int_output(name, meta_val))
        if isinstance(meta_val, (float, torch.SymFloat)):
            return create(as_sym_float=self.serialize_sym_float_output(name, meta_val))
        raise compat.SerializeError(f"Unable to serialize output {meta_val}")

    def serialize_script_obj_meta(self, script_obj_meta: Any) -> Any:
        """Return the `schema.CustomObjArgument` of a custom object that is an input."""
        return _schema.CustomObjArgument(script_obj_meta.name, script_obj_meta.class_fqn)

    def serialize_input_spec(self, spec: Any) -> Any:
        """Return the `schema.InputSpec` of an input; AssertionError for an unknown type."""
        return self._part("input_spec", spec)

    def serialize_output_spec(self, spec: Any) -> Any:
        """Return the `schema.OutputSpec` of an output; AssertionError for an unknown type."""
        return self._part("output_spec", spec)

    def serialize_signature(self, sig: Any) -> Any:
        """Return the `schema.GraphSignature` of a program's signature."""
        return self._part("signature", sig)

    def serialize_argument_spec(self, x: Any) -> Any:
        """Return the `schema.Argument` of an argument or result of a module call."""
        return self._part("argument_spec", x)

    def serialize_treespec(self, treespec: Any) -> str:
        """Return the text of a tree spec, and record the named tuples in it."""
        return self._treespecs(treespec)

    def serialize_module_call_signature(self, module_call_signature: Any) -> Any:
        """Return the `schema.ModuleCallSignature` of a module call's signature."""
        return self._part("call_signature", module_call_signature)

    def serialize_module_call_graph(self, module_call_graph: list[Any]) -> list[Any]:
        """Return the `schema.ModuleCallEntry` of each module call of a program."""
        return [self._part("call", entry) for entry in module_call_graph]

    def serialize_graph(self, graph_module: torch.fx.GraphModule) -> Any:
        """Return the `schema.Graph` of a graph module, which becomes the current graph.

        Raises:
            AssertionError: `graph_module` is not a GraphModule.
            SerializeError: a node cannot be written; the message names it.
        """
        if not isinstance(graph_module, torch.fx.GraphModule):
            raise AssertionError(f"expected GraphModule, got {type(graph_module).__name__}")
        graph = _native.on_unchanged(graph_module.graph, lambda: self._part("graph", graph_module))
        self.graph_state = GraphState(**vars(graph))
        return graph

    def serialize_graph_module_metadata(self, meta: dict[str, Any]) -> dict[str, str]:
        """Return the metadata of a graph module as stored in a file."""
        return graph_metadata(meta)

    def serialize(self, graph_module: torch.fx.GraphModule) -> Any:
        """Return the `schema.GraphModule` of a graph module, with the signature and module calls.

        Raises:
            AssertionError: `graph_module` is not a GraphModule.
            SerializeError: a node or the metadata cannot be written; the message names the node.
        """
        return _schema.GraphModule(
            graph=self.serialize_graph(graph_module),
            signature=self.serialize_signature(self.graph_signature),
            module_call_graph=self.serialize_module_call_graph(self.module_call_graph),
            metadata=self.serialize_graph_module_metadata(graph_module.meta),
            treespec_namedtuple_fields=self.treespec_namedtuple_fields,
        )
