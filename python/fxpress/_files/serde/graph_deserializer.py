"""Create graphs, or single parts of graphs, from objects of torch's schema."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import sympy
import torch

from fxpress import _native
from fxpress._files.format.torch_facts import allowed_names
from fxpress._files.serde import gate, targets
from fxpress._files.serde.damage import UnknownNameError, damage_is_named
from fxpress._files.serde.limits import Budget, Limits, sizes_of
from fxpress._files.serde.operators import Kind, described_kind
from fxpress._files.serde.reading import decode_graph_module
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._files.serde.values import Values
from fxpress._torch import serde as compat

_schema = compat.schema
_signature = compat.graph_signature
_SYMBOLIC = ("as_sym_int", "as_sym_float", "as_sym_bool")
_RESULTS = (
    *("as_tensor", "as_tensors", "as_none", "as_ints", "as_floats", "as_strings", "as_bools"),
    *("as_custom_obj", *_SYMBOLIC, "as_sym_ints", "as_sym_floats", "as_sym_bools"),
)
_CONSTANTS: dict[str, Callable[[Any], Any]] = {
    "as_int": int,
    "as_float": float,
    "as_string": str,
    "as_bool": bool,
}
_OUTPUTS = ("as_tensor", "as_none", "as_int", "as_float", "as_bool")


class LazyMap(dict[Any, Any]):
    """A dict whose items are results of functions; each function runs on first access.

    `map[key] = function` sets an item; `map[key]` returns the result of the function.

    Stands in for `torch._export.serde.serialize.LazyMap`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.map: dict[Any, Any] = {}
        self.evaluated: set[Any] = set()

    def __setitem__(self, key: Any, make: Callable[[], Any]) -> None:
        self.map[key] = make

    def __getitem__(self, key: Any) -> Any:
        if key not in self.evaluated:
            make = self.map[key]
            self.evaluated.add(key)
            self.map[key] = make()
        return self.map[key]

    def __repr__(self) -> str:
        return repr(self.map)


class NodesByName(Mapping[str, torch.fx.Node]):
    """A live mapping from names in the file to nodes of a graph that is being read."""

    def __init__(self, reader: _native.GraphDecoder) -> None:
        self._reader = reader
        self._scope = reader.scope

    def __getitem__(self, name: str) -> torch.fx.Node:
        node = self._reader.node(self._scope, name)
        if node is None:
            raise KeyError(name)
        return node

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.nodes(self._scope))

    def __len__(self) -> int:
        return len(self._reader.nodes(self._scope))

    def __repr__(self) -> str:
        return repr(self._reader.nodes(self._scope))


def _document(value: Any) -> _native.Document:
    return SCHEMA.to_document(CLASSES, value)


def _as_argument(value: Any) -> Any:
    """Wrap a tensor or symbolic argument in an Argument; return other values unchanged."""
    kinds = (
        ("as_tensor", _schema.TensorArgument),
        ("as_sym_int", _schema.SymIntArgument),
        ("as_sym_float", _schema.SymFloatArgument),
        ("as_sym_bool", _schema.SymBoolArgument),
    )
    for tag, kind in kinds:
        if isinstance(value, kind):
            return _schema.Argument.create(**{tag: value})
    return value


def _plain(argument: Any) -> Any:
    """Return a node's argument with plain lists and dicts instead of fx's immutable ones."""
    if isinstance(argument, list):
        return [_plain(item) for item in argument]
    if isinstance(argument, dict):
        return {key: _plain(item) for key, item in argument.items()}
    return tuple(map(_plain, argument)) if type(argument) is tuple else argument


def _attribute_of(owner: str, name: str, *, forgets: bool = False) -> Any:
    """Return a property for `self.<owner>.<name>`; if `forgets`, setting it drops cached values."""

    def get(self: GraphModuleDeserializer) -> Any:
        return getattr(getattr(self, owner), name)

    def assign(self: GraphModuleDeserializer, value: Any) -> None:
        setattr(getattr(self, owner), name, value)
        if forgets:
            self._reader.forget_values()

    return property(get, assign)


@final
class GraphModuleDeserializer(metaclass=compat.Final):  # type: ignore[metaclass]
    """Read graph modules, or single parts of them, from objects of torch's schema.

    `deserialize` reads an entire graph natively. The other methods read parts into the open graph,
    `graph`. It is empty at first; `deserialize` replaces it by the graph that it read.
    Nodes that the caller adds to `graph` keep their names.

    Stands in for `torch._export.serde.serialize.GraphModuleDeserializer`.

    Attributes:
        graph: the open graph.
        module: the module that contains the graphs of higher-order operators in `graph`.
        serialized_name_to_node: name in the file -> node; read only.
        serialized_name_to_meta: a new `LazyMap`: name in the file -> value.
        signature: the signature of the root graph, which lists the inputs that are constants.
        constants: name -> object, for arguments that are custom objects.
        example_inputs: the example inputs of the last `deserialize`.
        fake_tensor_mode, shape_env: the fake mode and the shape environment of the values. Setting
            `fake_tensor_mode` sets both.
        symbol_name_to_symbol: text -> expression, for all expressions read so far.
        symbol_name_to_range: text of a symbol or expression -> its `ValueRanges`.
        unbacked_symbols: the symbols that no node of the open graph has defined yet.

    Example:
        >>> from fxpress.serialize import GraphModuleDeserializer, GraphModuleSerializer
        >>> writer = GraphModuleSerializer(program.graph_signature, program.module_call_graph)
        >>> stored = writer.serialize(program.graph_module)
        >>> state, constants = program.state_dict, program.constants
        >>> read = GraphModuleDeserializer().deserialize(stored, state, constants)
        >>> len(read.graph_module.graph.nodes) == len(program.graph.nodes)
        True
    """

    @dataclasses.dataclass
    class Result:
        """The result of `deserialize`."""

        graph_module: torch.fx.GraphModule
        signature: Any
        module_call_graph: list[Any]
        names_to_symbols: dict[str, sympy.Symbol]
        state_dict: dict[str, Any]
        constants: dict[str, Any]
        example_inputs: Any

    def __init__(self) -> None:
        self._values = Values({})
        self._reader = _native.GraphDecoder(CLASSES, self._values, {})
        self.example_inputs: Any = None

    @property
    def graph(self) -> torch.fx.Graph:
        return self._reader.graph

    @property
    def module(self) -> torch.nn.Module:
        return self._reader.root

    @property
    def serialized_name_to_node(self) -> Mapping[str, torch.fx.Node]:
        return NodesByName(self._reader)

    @property
    def serialized_name_to_meta(self) -> LazyMap:
        values = LazyMap()
        scope = self._reader.scope
        for name in self._reader.value_names(scope):
            values[name] = functools.partial(self._value, self._reader, scope, name)
        return values

    @staticmethod
    def _value(reader: _native.GraphDecoder, scope: int, name: str) -> Any:
        with compat.without_modes():
            return reader.value(scope, name)

    @property
    def fake_tensor_mode(self) -> Any:
        return self._values.fake_mode

    @fake_tensor_mode.setter
    def fake_tensor_mode(self, mode: Any) -> None:
        self._values.fake_mode, self._values.shape_env = mode, mode.shape_env
        self._reader.forget_values()

    signature = _attribute_of("_reader", "signature")
    constants = _attribute_of("_reader", "constants")
    shape_env = _attribute_of("_values", "shape_env", forgets=True)
    symbol_name_to_symbol = _attribute_of("_values", "symbols", forgets=True)
    symbol_name_to_range = _attribute_of("_values", "ranges", forgets=True)
    unbacked_symbols = _attribute_of("_values", "unbacked_symbols")

    @contextlib.contextmanager
    def save_graph_module(self) -> Iterator[None]:
        """Run the block with a new open graph, then open the previous graph again."""
        reader, values = self._reader, self._values
        reader.open()
        try:
            yield
        finally:  # a `deserialize` in the block replaces `_reader` and `_values`
            self._reader, self._values = reader, values
            reader.close()

    def _part(self, kind: str, value: Any, extra: Any = None) -> Any:
        with compat.without_modes():
            return self._reader.part(kind, _document(value), extra)

    def _node_of(self, inputs: Sequence[Any] = (), metadata: dict[str, str] | None = None) -> Any:
        return _schema.Node(target="", inputs=list(inputs), outputs=[], metadata=metadata or {})

    def deserialize(
        self,
        serialized_graph_module: Any,
        serialized_state_dict: Any,
        constants: Any,
        example_inputs: Any = None,
        symbol_name_to_range: dict[str, Any] | None = None,
        *,
        allow_pickle: bool = False,
        allow_operators: Iterable[str] = (),
        limits: Limits | None = None,
    ) -> Result:
        """Return the graph, the signature and the state of a `schema.GraphModule`.

        Args:
            serialized_graph_module: the object, which is not modified.
            serialized_state_dict, constants, example_inputs: bytes of `torch.save`, or the values,
                which are returned unchanged.
            symbol_name_to_range: symbol or expression -> its `ValueRanges`.
            allow_pickle: unpickle parts that `torch.load(weights_only=True)` rejects, which may run
                any code.
            allow_operators: operators or namespaces that this graph, and parts that are read later,
                may call; see `fxpress.serialize.deserialize`.
            limits: the limits on the cost of reading; None: the defaults.

        Raises:
            fxpress.LimitError: reading would exceed the limits.
            fxpress.SerializeError: the graph is damaged, names an operator or class that is not
                registered, or needs `allow_pickle` or `allow_operators`.
            fxpress.UnsupportedError: fxpress cannot read a part of the graph.
        """
        allowed = allowed_names(allow_operators)
        ranges = {k: (r.lower, r.upper) for k, r in (symbol_name_to_range or {}).items()}
        whole = _schema.ExportedProgram(
            graph_module=serialized_graph_module,
            opset_version={},
            range_constraints={},
            schema_version=_schema.SchemaVersion(*_schema.SCHEMA_VERSION),
        )
        document = _document(whole)
        size = document.size + sizes_of(serialized_state_dict, constants, example_inputs)
        with damage_is_named():
            made = decode_graph_module(
                document,
                ranges,
                serialized_state_dict,
                constants,
                example_inputs,
                allow_pickle,
                Budget(limits, size),
                allowed=allowed,
            )
        self._reader, self._values = made.reader, made.values
        self.example_inputs = made.example_inputs
        return GraphModuleDeserializer.Result(
            graph_module=made.graph_module,
            signature=made.signature,
            module_call_graph=made.calls,
            names_to_symbols=made.values.symbols,
            state_dict=made.state_dict,
            constants=made.constants,
            example_inputs=made.example_inputs,
        )

    def deserialize_graph(self, serialized_graph: Any) -> torch.fx.Graph:
        """Add the nodes of a `schema.Graph` to the open graph, and return the open graph."""
        graph: torch.fx.Graph = self._part("graph", serialized_graph)
        return graph

    def deserialize_node(self, serialized_node: Any, target: Any) -> None:
        """Add a node that calls `target`, and the nodes that unpack its results."""
        self._part("node", serialized_node, targets.describe_target(target))

    def deserialize_graph_output(self, output: Any) -> Any:
        """Return the node or constant of a graph's output; SerializeError for an unknown type."""
        if output.type not in (*_OUTPUTS, *_SYMBOLIC):
            raise compat.SerializeError(f"Unable to deserialize output node {output}")
        return self.deserialize_input(output)

    def sync_fx_node(self, name: str, fx_node: torch.fx.Node) -> None:
        """Rename a node to a name in the file, and set its value from the tables of the graph.

        Raises:
            SerializeError: a node with the name exists; or the name is not an identifier, or is not
                in the tables of the graph.
            AssertionError: `fx_node` has a value already, and no node with the name exists.
        """
        if "val" in fx_node.meta and name not in self.serialized_name_to_node:
            raise AssertionError(f"fx_node {name} already has 'val' in meta")
        gate.check("Identifier", name, "name")
        with compat.without_modes():
            self._reader.name_node(fx_node, name)

    def deserialize_operator(self, serialized_target: str) -> Any:
        """Return the operator or function with a name; return the name if it is unknown.

        Raises:
            SerializeError: the name starts with "#" and no extension is registered for its
                namespace, or the operator needs `allow_operators`.
        """
        if serialized_target.startswith("#"):
            return self.deserialize_extension_operator(serialized_target)
        try:
            return self._values.find_target(serialized_target)
        except UnknownNameError:
            return serialized_target

    def deserialize_extension_operator(self, serialized_target: str) -> Any:
        """Return the operator of a registered extension by its text, "#namespace:name"."""
        return self._values.find_target(serialized_target)

    def deserialize_inputs(self, target: Any, serialized_node: Any) -> Any:
        """Return the (args, kwargs) of a node according to the schema of its operator."""
        return _plain(self._part("inputs", serialized_node, targets.describe_target(target)))

    def deserialize_hoo_inputs(self, inputs: list[Any]) -> Any:
        """Return the (args, kwargs) of a higher-order operator, which does not have a schema."""
        target = None, described_kind(Kind.HIGHER_ORDER)
        return _plain(self._part("inputs", self._node_of(inputs), target))

    def deserialize_sym_op_inputs(self, inputs: Sequence[Any]) -> Any:
        """Return the positional arguments of a function on symbolic numbers."""
        target = None, described_kind(Kind.SYMBOLIC)
        return _plain(self._part("inputs", self._node_of(inputs), target)[0])

    def deserialize_input(self, inp: Any) -> Any:
        """Return the value of an Argument, with nodes of the open graph in place of their names."""
        return _plain(self._part("argument", inp))

    def deserialize_sym_argument(self, sym_arg: Any) -> Any:
        """Return the node or number of a symbolic argument; SerializeError for other arguments."""
        argument = _as_argument(sym_arg)
        if argument is sym_arg or isinstance(sym_arg, _schema.TensorArgument):
            raise compat.SerializeError(f"Unknown symbolic argument type: {sym_arg}")
        return self.deserialize_input(argument)

    def deserialize_constant_input(self, inp: Any) -> Any:
        """Return the value of a `schema.ConstantValue`; SerializeError for an unknown type."""
        if inp.type == "as_none":
            return None
        if inp.type not in _CONSTANTS:
            raise compat.SerializeError(f"Unhandled constant argument {inp} to deserialize")
        return _CONSTANTS[inp.type](inp.value)

    def deserialize_outputs(self, serialized_node: Any, fx_node: torch.fx.Node) -> None:
        """Name the results of a node, and add the nodes that unpack them."""
        higher_order = "torch.ops.higher_order" in serialized_node.target
        kind = Kind.HIGHER_ORDER if higher_order else Kind.SCHEMA
        self._part("outputs", serialized_node, ((None, described_kind(kind)), fx_node))

    def deserialize_sym_op_outputs(self, serialized_node: Any, fx_node: torch.fx.Node) -> None:
        """Name the only result of a function on symbolic numbers."""
        self.sync_fx_node(serialized_node.outputs[0].value.as_name, fx_node)

    def deserialize_multiple_outputs(self, serialized_node: Any, fx_node: torch.fx.Node) -> None:
        """Add nodes that unpack the results of a node; AssertionError if they are not a list."""
        outputs = serialized_node.outputs
        if len(outputs) == 1 and not isinstance(outputs[0].value, list):
            raise AssertionError(f"expected list, got {type(outputs[0].value).__name__}")
        self._part("multiple_outputs", serialized_node, fx_node)

    def generate_getitem(
        self,
        meta_val: list[Any],
        fx_node: torch.fx.Node,
        arg: Any,
        idx: int,
        deserialized_metadata: dict[str, Any],
    ) -> None:
        """Add a getitem node for result `idx` of `fx_node`; append the node's value to `meta_val`.

        Args:
            meta_val: the list that gets the value.
            fx_node: the node whose result is taken.
            arg: the schema's argument for the result.
            idx: the position of the result.
            deserialized_metadata: entries that are added to `Node.meta` of each new node.

        Raises:
            AssertionError: `arg` is not an argument of the schema.
        """
        argument = _as_argument(arg)
        if not isinstance(argument, _schema.Argument):
            raise AssertionError(f"expected a schema.Argument, got a {type(arg).__name__}")
        last = next(iter(reversed(self.graph.nodes)), None)
        meta_val.append(self._part("result", argument, (fx_node, idx)))
        for node in reversed(self.graph.nodes):
            if node is last:
                break
            node.meta.update(deserialized_metadata)

    def generate_getitems(
        self,
        meta_val: list[Any],
        fx_node: torch.fx.Node,
        args: Sequence[Any],
        deserialized_metadata: dict[str, Any],
    ) -> None:
        """Call `generate_getitem` for each of the results `args` of `fx_node`.

        Raises:
            NotImplementedError: one of `args` has a type that no node can return.
        """
        for idx, arg in enumerate(args):
            if isinstance(arg, _schema.Argument) and arg.type not in _RESULTS:
                raise NotImplementedError(f"a result cannot be {arg}")
            self.generate_getitem(meta_val, fx_node, arg, idx, deserialized_metadata)

    def _parse_sym_expr(self, expr_str: Any, hint: Any = None) -> Any:
        """Return the expression with this text, after adding it to the shape environment."""
        return self._values.expression(expr_str, hint)

    def _number(self, s: Any, kind: type, hinted: bool = True) -> Any:
        name = f"as_{kind.__name__}"
        if s.type == name:
            if type(s.value) is not kind:
                raise AssertionError(f"expected {kind.__name__}, got {type(s.value).__name__}")
            return s.value
        if s.type != "as_expr":
            class_name = type(s).__name__
            raise compat.SerializeError(
                f"{class_name} has invalid field type {s.type} with value {s.value}"
            )
        hint = s.value.hint if hinted else None
        if hint is not None and hint.type != name:
            raise AssertionError(f"expected hint type {name!r}, got {hint.type!r}")
        value = None if hint is None else hint.value
        return self._values.number(type(s).__name__, s.value.expr_str, value)

    def deserialize_sym_int(self, s: Any) -> Any:
        """Return the int or `torch.SymInt` of a `schema.SymInt`."""
        return self._number(s, int)

    def deserialize_sym_float(self, s: Any) -> Any:
        """Return the float or `torch.SymFloat` of a `schema.SymFloat`."""
        return self._number(s, float)

    def deserialize_sym_bool(self, s: Any) -> Any:
        """Return the bool or `torch.SymBool` of a `schema.SymBool`."""
        return self._number(s, bool, hinted=False)

    def deserialize_tensor_meta(self, tensor_meta: Any) -> Any:
        """Return a fake tensor with the metadata in a `schema.TensorMeta`."""
        return self._part("tensor", tensor_meta)

    def deserialize_script_obj_meta(self, script_obj_meta: Any) -> Any:
        """Convert the schema's `CustomObjArgument` to torch.export's."""
        return _signature.CustomObjArgument(
            name=script_obj_meta.name, class_fqn=script_obj_meta.class_fqn
        )

    def deserialize_metadata(self, metadata: dict[str, str]) -> dict[str, Any]:
        """Return the entries of `Node.meta` that are stored in a node's metadata."""
        read: dict[str, Any] = self._part("metadata", self._node_of(metadata=metadata))
        return read

    def _deserialize_from_node(self, from_node_data: list[dict[str, Any]] | None) -> Any:
        if from_node_data is not None and not isinstance(from_node_data, list):
            raise AssertionError(f"expected list, got {type(from_node_data).__name__}")
        return self.deserialize_metadata({"from_node": json.dumps(from_node_data)})["from_node"]

    def deserialize_input_spec(self, i: Any) -> Any:
        """Convert the schema's `InputSpec` to torch.export's."""
        return self._part("input_spec", i)

    def deserialize_output_spec(self, o: Any) -> Any:
        """Convert the schema's `OutputSpec` to torch.export's."""
        return self._part("output_spec", o)

    def deserialize_signature(self, sig: Any) -> Any:
        """Return the `ExportGraphSignature` for a `schema.GraphSignature`."""
        return self._part("signature", sig)

    def deserialize_argument_spec(self, x: Any) -> Any:
        """Convert a `schema.Argument` in a signature to torch.export's argument class."""
        return self._part("argument_spec", x)

    def deserialize_module_call_signature(self, module_call_signature: Any) -> Any:
        """Convert the schema's `ModuleCallSignature` to torch.export's."""
        return self._part("call_signature", module_call_signature)

    def deserialize_module_call_graph(self, module_call_graph: list[Any]) -> list[Any]:
        """Convert each `ModuleCallEntry` of the schema to torch.export's."""
        return [
            compat.ModuleCallEntry(
                fqn=entry.fqn,
                signature=entry.signature
                and self.deserialize_module_call_signature(entry.signature),
            )
            for entry in module_call_graph
        ]
