"""Find the order, names and values of the inputs of the decomposed ("new") program.

`SizeNodes` describes the nodes that read symbolic sizes from these inputs.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, Node

from fxpress import _native
from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.plan import Instance
from fxpress._graphs.decompose.symbols import Symbols
from fxpress._graphs.decompose.template import NumberSpec, Template, TemplateNode
from fxpress._graphs.decompose.values import Number, Storage, UnsafeError, Value, facts_of, size_of
from fxpress._torch import decompose as compat
from fxpress._torch import symbols as torch_symbols
from fxpress._torch.decompose import pytree

_STATE = (InputKind.PARAMETER, InputKind.BUFFER)


class Input(NamedTuple):
    """An input of the new program."""

    old: Node  # the placeholder in the old graph
    spec: InputSpec  # the input's entry in the old signature
    state: torch.Tensor | None  # the parameter, buffer or constant; None for a user input
    value: Value | Number | None  # the tensor or number in the new trace; None: a plain constant


def read_inputs(program: ExportedProgram, shape_env: Any) -> list[Input]:
    """Return the inputs of the new program, in their new order.

    Parameters come first, then buffers and constants, then user inputs. State has the order of the
    modules in `ep.module()`, and the constants of a module follow its buffers.
    """
    placeholders = [n for n in _native.list_nodes(program.graph) if n.op == "placeholder"]
    specs = program.graph_signature.input_specs
    if len(placeholders) != len(specs):
        raise UnsafeError(f"the graph has {len(placeholders)} inputs, the signature {len(specs)}")
    parameters, buffers, user_inputs = [], [], []
    targets: list[str] = []  # names of the state, in the order of the signature
    for old, spec in zip(placeholders, specs, strict=True):
        if old.meta.keys().isdisjoint(("val",)):
            raise UnsafeError(f"the meta of placeholder {old.name!r} has no `val`")
        if spec.kind is InputKind.USER_INPUT:
            user_inputs.append((old, spec))
            continue
        if spec.kind is InputKind.PARAMETER:
            parameters.append((old, spec))
        elif spec.kind in (InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            buffers.append((old, spec))
        else:
            raise UnsafeError(f"input {old.name!r} is of kind {spec.kind.name}")
        targets.append(spec.target)
    order = _module_order(targets)
    parameters.sort(key=lambda entry: order[entry[1].target.rpartition(".")[0]])
    buffers.sort(key=lambda entry: _buffer_rank(entry[1], order))
    entries = [*parameters, *buffers, *user_inputs]
    reader = _Reader(program, shape_env)
    return [reader.read(old, spec, i) for i, (old, spec) in enumerate(entries)]


def _buffer_rank(spec: InputSpec, order: dict[str, int]) -> tuple[int, bool]:
    return order[spec.target.rpartition(".")[0]], spec.kind is InputKind.CONSTANT_TENSOR


def _module_order(targets: list[str]) -> dict[str, int]:
    """Return {path of a module in `targets`: its position in a depth-first walk of the modules}.

    The walk visits children of a module in the order in which `targets` first mention them.
    """
    children: dict[str, dict[str, None]] = {"": {}}
    for target in targets:
        path = ""
        for atom in target.split(".")[:-1]:
            child = f"{path}.{atom}" if path else atom
            children[path].setdefault(child)
            children.setdefault(child, {})
            path = child
    order: dict[str, int] = {}
    stack = [""]
    while stack:
        module = stack.pop()
        order[module] = len(order)
        stack.extend(reversed(children[module]))
    return order


class _Reader:
    """Reads the value of each input, and checks that templates support it."""

    def __init__(self, program: ExportedProgram, shape_env: Any) -> None:
        self._program = program
        self._shape_env = shape_env
        self._storages: dict[Any, Storage] = {}

    def read(self, old: Node, spec: InputSpec, number: int) -> Input:
        if spec.kind is InputKind.USER_INPUT:
            return Input(old, spec, None, self._user_input(old.meta["val"], spec, number))
        is_parameter = spec.kind is InputKind.PARAMETER
        in_constants = spec.kind is InputKind.CONSTANT_TENSOR or spec.persistent is False
        holder = self._program.constants if in_constants else self._program.state_dict
        state = holder.get(spec.target)
        cls = torch.nn.Parameter if is_parameter else torch.Tensor
        if type(state) is not cls or type(spec.arg) is not TensorArgument:
            raise UnsafeError(f"{spec.target!r} is a {type(state).__name__}, not a {cls.__name__}")
        if not is_parameter and state.requires_grad:
            raise UnsafeError(f"{spec.target!r}, a buffer or a constant, requires gradients")
        return Input(old, spec, state, self._value(state, number))

    def _user_input(self, value: Any, spec: InputSpec, number: int) -> Value | Number | None:
        """Return the Value or Number of a user input; None for a plain constant."""
        if isinstance(value, torch.Tensor):
            if type(value) is not compat.FakeTensor or type(spec.arg) is not TensorArgument:
                raise UnsafeError("the `val` of a tensor input is not a plain fake tensor")
            return self._value(value, number)
        if type(value) is torch.SymInt and type(spec.arg) is SymIntArgument:
            expression = torch_symbols.expression_of(value, self._shape_env)
            if expression is None or not torch_symbols.is_symbol(expression):
                raise UnsafeError("a SymInt input is not a single symbol")
            return Number(expression, int, number)
        if type(spec.arg) is not ConstantArgument or type(value) not in _PLAIN:
            raise UnsafeError(f"an input is of type {type(value).__name__}")
        return None

    def _value(self, tensor: torch.Tensor, number: int) -> Value:
        facts = facts_of(tensor, self._shape_env)
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            nbytes = size_of(storage.nbytes(), self._shape_env)
            parts = (storage, None) if type(tensor) is compat.FakeTensor else (None, tensor)
            known = self._storages[storage._cdata] = Storage(nbytes, *parts)
        return Value(number, facts, known)


# Types of constant inputs. No node uses such an input or the symbol that torch creates for it.
_PLAIN = (int, bool, float, str, type(None))


class SizeNodes:
    """The nodes that read each symbol from an input. torch adds them before the nodes of calls.

    Attributes:
        of_inputs: a number for each input. It is the id (`Symbols.id_of`) of the symbol if the
            input is a SymInt, and no earlier input has this symbol. Otherwise, it is -1.
        count: the number of nodes.
        instance: the nodes, as an instance of a template; None if there are no nodes.
    """

    def __init__(self, inputs: list[Input], symbols: Symbols) -> None:
        self._symbols = symbols
        self._known: set[Any] = set()
        self.of_inputs = [-1] * len(inputs)
        self._graph = Graph()
        self._nodes: list[TemplateNode] = []
        self._numbers: dict[Node, int] = {}
        self._read: list[int] = []
        for number, entry in enumerate(inputs):
            value = entry.value
            symbol = (
                torch_symbols.symbol_read(entry.old.meta["val"]) if type(value) is Number else None
            )
            if symbol is not None and symbol not in self._known:
                self._known.add(symbol)
                self.of_inputs[number] = symbols.id_of(symbol)
            elif type(value) is Value and value.facts.is_symbolic:
                self._read_tensor(entry.old, value)
        self.count = len(self._nodes)
        self.instance: Instance | None = None
        if self._nodes:
            template = Template(tuple(self._nodes), self._numbers, (), None, (), True)
            self.instance = Instance(inputs[0].old, template, self._read, [], len(inputs))

    def _read_tensor(self, old: Node, value: Value) -> None:
        """Add a node for each symbol that is a size, a stride or the offset of an input."""
        tensor = old.meta["val"]
        properties = [
            *((torch_symbols.SIZE_OF, (i,), size) for i, size in enumerate(tensor.shape)),
            *((torch_symbols.STRIDE_OF, (i,), size) for i, size in enumerate(tensor.stride())),
            (torch_symbols.OFFSET_OF, (), tensor.storage_offset()),
        ]
        placeholder: Node | None = None
        for target, index, size in properties:
            symbol = torch_symbols.symbol_read(size)
            if symbol is None or symbol in self._known:
                continue
            self._known.add(symbol)
            if placeholder is None:
                placeholder = self._graph.placeholder("tensor")
                placeholder.meta["val"] = tensor
                self._read.append(value.node)
                self._numbers[placeholder] = -len(self._read)
            self._add(self._graph.call_function(target, (placeholder, *index)), symbol)

    def _add(self, node: Node, symbol: Any) -> None:
        torch_symbols.describe_size_node(node)
        (placeholder,) = node.all_input_nodes
        number = self._numbers[placeholder]
        name = self._graph._target_to_str(node.target)
        items = ((key, kinds.LITERAL, item) for key, item in node.meta.items())
        meta = tuple([(k, kinds.VALUE, None) if k == "val" else (k, h, v) for k, h, v in items])
        value = NumberSpec(symbol, int)
        self._numbers[node] = len(self._nodes)
        self._nodes.append(
            TemplateNode(node.target, node, (number,), name, False, meta, value, symbol)
        )
        node.meta = {}


_NO_NAME = re.compile(r"[^a-zA-Z0-9]")


def _text(key: Any) -> str:
    """Return the text that one key of an input's pytree path contributes to the input's name."""
    if isinstance(key, pytree.MappingKey):
        return _NO_NAME.sub("_", str(key.key))
    if isinstance(key, pytree.SequenceKey):
        return str(key.idx)
    if isinstance(key, pytree.GetAttrKey):
        return str(key.name)
    raise UnsafeError("an input is in a container of an unknown type")


def argument_names(program: ExportedProgram) -> list[str]:
    """Return the names that torch derives for user inputs from their paths in the arguments."""
    calls = program.module_call_graph
    signature = calls[0].signature if calls and calls[0].fqn == "" else None
    if signature is None or signature.in_spec.type is not tuple:
        raise UnsafeError("the program does not have the tree spec of its inputs")
    spec = signature.in_spec
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    values = (*args, *kwargs.values())
    names = signature.forward_arg_names or [*(f"arg_{i}" for i in range(len(args))), *kwargs]
    if len(names) != len(values) or not all(map(str.isidentifier, names)) or "self" in names:
        raise UnsafeError("the names of the inputs are not known")
    flat, _ = pytree.tree_flatten_with_path(dict(zip(names, values, strict=True)))
    return ["_".join([_text(key).lower() for key in path]) for path, _ in flat]


def input_names(program: ExportedProgram, inputs: list[Input]) -> list[str]:
    """Return the names of the new program's placeholders, in the order of `inputs`."""
    renamer = _native.Renamer()
    positions = [i for i, entry in enumerate(inputs) if entry.spec.kind is InputKind.USER_INPUT]
    proposed = argument_names(program)
    if len(proposed) != len(positions):
        raise UnsafeError(f"{len(positions)} user inputs, but {len(proposed)} in the tree spec")
    names = [""] * len(inputs)
    bases: set[str] = set()
    for position, name in zip(positions, proposed, strict=True):
        if not name or not name.isascii():  # `Renamer` supports only ASCII names
            raise UnsafeError(f"the name {name!r} of an input is empty or not ASCII")
        names[position] = renamer.placeholder(name)
    for position, entry in enumerate(inputs):
        if entry.spec.kind is not InputKind.USER_INPUT:
            base = _without_self(entry.spec.target or "").lower()
            names[position] = renamer.placeholder(compat.PREFIXES[entry.spec.kind] + base)
            bases.add(base)
    # If an old node has one of these names, torch copies the node's annotations to an input.
    copied = {*bases, *names}
    nodes = _native.list_nodes(program.graph)
    if any("custom" in node.meta and node.name in copied for node in nodes):
        raise UnsafeError("a node with annotations has the name of an input")
    return names


def _without_self(target: str) -> str:
    """Return a state's name without Dynamo's prefix for `self`; `_` replaces invalid characters."""
    for prefix in ("L__self___", "self_"):
        if target.startswith(prefix):
            target = target[len(prefix) :]
            break
    return _NO_NAME.sub("_", target)
