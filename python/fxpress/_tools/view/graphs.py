"""Read the graphs of a program from its JSON text."""

from __future__ import annotations

import gc
import marshal
import os
from collections import Counter, deque
from typing import Any

from fxpress import _native
from fxpress._files.format import fields
from fxpress._files.format.package import Allowance, InspectionError, Package
from fxpress._files.format.stored import STATE
from fxpress._files.format.tensors import example_of, expression, size_of, tensor_of
from fxpress._tools.inspect.arguments import bodies_in, readable, values_in
from fxpress._tools.inspect.summary import kind_of, model_records
from fxpress._tools.view.namespaces import Namespaces
from fxpress._tools.view.nodes import Ancestor, Argument, Graph, Node, TensorFacts, Value, cut
from fxpress._tools.view.ranges import cut_long_layers

_LONGEST_NAME = 100  # the maximum characters of a part of a graph's id
_DEPTH = 60  # the maximum depth of nested graphs, and of objects in the history of a node
# Kind of an input in a signature -> the field with the input's name in the state or constants.
_KINDS = {**{kind: place.field for kind, place in STATE.items()}, "custom_obj": "custom_obj_name"}
_MANY = 20_000  # with fewer young objects than this, a garbage collection is fast
# The estimated bytes of a graph's objects, and of the plain data that is built from them.
_NODE_BYTES = 2000
_EDGE_BYTES = 400
_RESULT_BYTES = 700
_TEXT_BYTES = 300
_LAYER_BYTES = 2000


def graphs_by_program(path: str | bytes | os.PathLike[str]) -> dict[str, list[Graph]]:
    """Return, for each program of a file, its graph, followed by its operators' bodies.

    OSError if the file cannot be read; InspectionError if it is damaged, or has no programs.
    """
    with Package(path) as package:
        kind_of(package)
        memory = Allowance(package.bytes)
        return {
            name: graphs_of_text(package.read(record), name, record, package, memory)
            for name, record in model_records(package)
        }


def graphs_of_text(
    text: bytes,
    name: str,
    record: str,
    package: Allowance | None = None,
    memory: Allowance | None = None,
) -> list[Graph]:
    """Return the graphs of a program's JSON text; InspectionError if it is damaged.

    `record` names the text in errors. `package` limits the memory of parsed JSON objects, and
    `memory` limits that of graphs. If one is None, the length of the text determines the limit.
    """
    with _native.GcPause():  # none of the new objects are garbage at the end
        document = fields.parse(text, record, package)
        made = _Program(record, memory or Allowance(len(text))).graphs(document, name)
        make_old()
    return made


def make_old() -> None:
    """Move all objects into the oldest generation of the garbage collector.

    Otherwise the next collections would spend a fifth of the run time on millions of new objects
    that are all in use. The next full collection still frees objects that are garbage.

    The function does nothing if the process has frozen objects, because it would unfreeze them.
    """
    if gc.get_count()[0] > _MANY and gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()


class _Program:
    """Builds the graphs of a program; descriptions that many nodes share are built once."""

    def __init__(self, record: str, memory: Allowance) -> None:
        self._record, self._memory = record, memory
        self.made: list[Graph] = []  # each graph is followed by its operators' bodies
        self._tensors: dict[bytes, TensorFacts] = {}
        self._targets: dict[str, tuple[str, str]] = {}
        self._sources: dict[str, tuple[str, str]] = {}

    def graphs(self, document: dict[str, Any], name: str) -> list[Graph]:
        """Return the graphs of a document; `name` is the id of the program's own graph."""
        with fields.damage_is_named(f"record {self._record!r}"):
            module = fields.expect_object(document["graph_module"])
            signature = fields.expect_object(module["signature"])
            graph = module["graph"]
        _Writer(self, graph, signature, name, f"record {self._record!r}: graph", 0)
        facts = self.made[0].layers.setdefault("", {})
        with fields.damage_is_named(f"record {self._record!r}: range_constraints"):
            for symbol, bounds in fields.expect_object(
                document.get("range_constraints") or {}
            ).items():
                lower, upper = (
                    fields.expect_object(bounds).get(end) for end in ("min_val", "max_val")
                )
                facts[f"symbol {expression(symbol)}"] = f"{lower} to {upper}"
            for number, guard in enumerate(fields.expect_list(document.get("guards_code") or [])):
                facts[f"guard {number}"] = cut(fields.expect_str(guard))
        return self.made

    def charge(self, size: int) -> None:
        """Charge memory; InspectionError if too little is left."""
        self._memory.charge(size, self._record)

    def tensor(self, meta: Any) -> TensorFacts:
        """Return a `TensorMeta` as TensorFacts; equal descriptions share one object."""
        key = marshal.dumps(meta, 2)
        known = self._tensors.get(key)
        if known is None:
            self.charge(len(key) + _RESULT_BYTES)
            tensor = tensor_of(meta)
            strides = [size_of(stride) for stride in fields.expect_list(meta["strides"])]
            device = fields.expect_object(meta["device"])
            index = device.get("index")
            where = fields.expect_str(device["type"]) + ("" if index is None else f":{index}")
            examples = [example_of(size) for size in meta["sizes"]]
            known = self._tensors[key] = TensorFacts(tensor, examples, strides, where)
        return known

    def target(self, target: Any) -> tuple[str, str]:
        """Return the label of an operator, and the operator's name without "torch.ops."."""
        known = self._targets.get(fields.expect_str(target))
        if known is None:
            plain = target.removeprefix("torch.ops.")
            parts = plain.split(".")  # library, name and overload
            is_operator = target.startswith("torch.ops.") and len(parts) > 1
            known = self._targets[target] = parts[1] if is_operator else parts[-1], plain
        return known

    def source(self, stack: Any) -> tuple[str, str]:
        """Return the last frame of a stack trace, and the trace if it has several frames."""
        known = self._sources.get(fields.expect_str(stack))
        if known is None:
            lines = [line.strip() for line in stack.strip().split("\n")]
            places = sum(line.startswith("File ") for line in lines)
            source = cut("\n".join(lines[-2:])) if places else ""
            whole = "\n".join(map(cut, lines)) if places > 1 else ""
            self.charge(2 * (len(source) + len(whole)))
            known = self._sources[stack] = source, whole
        return known

    def ancestors(self, history: Any) -> tuple[Ancestor, ...]:
        """Return the nodes from which a node with this history was created, the latest first."""
        if history in ("", "[]"):
            return ()
        text = fields.expect_str(history).encode()
        found = []
        with self._memory.release_charges():
            self.charge(fields.objects_of(text, 0))
            waiting = deque(fields.expect_list(fields.load_json(text, _DEPTH)))
            while waiting:
                each = fields.expect_object(waiting.popleft())
                texts = (str(each.get(key) or "") for key in ("name", "target", "pass_name"))
                found.append(Ancestor(*map(cut, texts)))
                waiting += fields.expect_list(each.get("from_node") or [])
        self.charge(_TEXT_BYTES * len(found))
        return tuple(found)


class _Writer:
    """Builds a graph from its parsed JSON, and adds it to a program.

    `signature` is None for a body, `name` is the graph's id, `place` names its location in errors,
    and `depth` is the number of graphs that contain it.
    """

    def __init__(
        self,
        program: _Program,
        graph: Any,
        signature: dict[str, Any] | None,
        name: str,
        place: str,
        depth: int,
    ) -> None:
        if depth > _DEPTH:
            raise InspectionError(f"{place}: graphs are nested more than {_DEPTH} levels deep")
        self._program, self._place, self._depth = program, place, depth
        self._values: dict[str, tuple[Node, int]] = {}  # name -> (node, number of its output)
        self._made = Graph(name)
        program.made.append(self._made)
        with fields.damage_is_named(place):
            self._tensors = fields.expect_object(fields.expect_object(graph)["tensor_values"])
            nodes = fields.expect_list(graph["nodes"])
            stacks = Counter(map(_stack_of, nodes))
            program.charge(sum(_LAYER_BYTES + 4 * len(stack) for stack in stacks))
            self._namespaces = Namespaces(stacks)
        with fields.damage_is_named(f"{place}.inputs"):
            specs = [] if signature is None else fields.expect_list(signature["input_specs"])
            for number, given in enumerate(fields.expect_list(graph["inputs"])):
                spec = specs[number] if number < len(specs) else None
                self._input(number, given, spec)
        number = 0
        try:
            for number, node in enumerate(nodes):
                self._node(number, fields.expect_object(node))
        except fields.DAMAGE as error:
            raise fields.damage(f"{place}.nodes[{number}]", error) from None
        with fields.damage_is_named(f"{place}.outputs"):
            specs = [] if signature is None else fields.expect_list(signature["output_specs"])
            self._outputs(fields.expect_list(graph["outputs"]), specs)
        self._made.layers = self._namespaces.attributes()
        cut_long_layers(self._made)

    def _add(self, node: Node) -> None:
        self._program.charge(
            _NODE_BYTES
            + _TEXT_BYTES * len(node.constants)
            + _EDGE_BYTES * len(node.arguments)
            + _RESULT_BYTES * len(node.results)
        )
        for number, value in enumerate(node.results):
            self._values[value.name] = node, number
        self._made.nodes.append(node)

    def _value(self, name: str) -> Value:
        meta = self._tensors.get(name)
        return Value(name, None if meta is None else self._program.tensor(meta))

    def _argument(self, name: str, value: str) -> Argument:
        source = self._values.get(value)
        if source is None:
            raise ValueError(f"{value!r} is used before it is computed")
        return Argument(name, *source)

    def _input(self, number: int, given: Any, spec: Any) -> None:
        names = _names_in(given)
        if not names:
            return  # a constant
        value = self._value(names[0])
        node = Node(f"input {number}", names[0], "inputs", "", names[0], results=[value])
        if spec is None:
            node.kind = "input"
        else:
            kind, held = fields.expect_one_of(spec)
            held = fields.expect_object(held or {})
            node.kind = kind.replace("_", " ")
            if _KINDS.get(kind) in held:
                node.state = fields.expect_str(held[_KINDS[kind]])
            if kind == "buffer":
                node.persistent = str(held["persistent"])
        if node.state:
            self._program.charge(_LAYER_BYTES)
            node.module, _, own = node.state.rpartition(".")
            node.label = own or names[0]
            node.layer = self._namespaces.of_state(node.module, value.bytes or 0)
        self._add(node)

    def _node(self, number: int, node: dict[str, Any]) -> None:
        metadata = fields.expect_object(node["metadata"])
        label, target = self._program.target(node["target"])
        name = fields.expect_str(node.get("name") or "")
        stack = fields.expect_str(metadata.get("nn_module_stack", ""))
        layer, module = self._namespaces.of_stack(stack)
        made = Node(f"node {number}", label, layer, module, name, target)
        bodies: list[tuple[str, int, Any]] = []
        for position, argument in enumerate(fields.expect_list(node["inputs"])):
            named = fields.expect_str(fields.expect_object(argument)["name"]) or str(position)
            given = argument["arg"]
            if (tensor := _tensor_in(given)) is not None:  # most arguments
                made.arguments.append(self._argument(named, tensor))
                continue
            bodies += [(named, count, body) for count, body in enumerate(bodies_in(given))]
            values = _names_in(given)
            made.arguments += [self._argument(named, value) for value in values]
            if not values and (shown := _shown(given)) is not None:
                made.constants.append((named, shown))
        if trace := metadata.get("stack_trace"):
            made.source, made.stack = self._program.source(trace)
        if history := metadata.get("from_node"):
            made.ancestors = self._program.ancestors(history)
        made.torch_function = cut(fields.expect_str(metadata.get("torch_fn") or ""))
        made.custom = cut(fields.expect_str(metadata.get("custom") or ""))
        outputs = node["outputs"]
        if type(outputs) is not dict and type(outputs) is not str:
            fields.expect_list(outputs)
        made.results = [self._value(value) for value in _names_in(outputs)]
        self._add(made)
        for named, count, body in bodies:
            inside = f"{cut(name or made.id, _LONGEST_NAME)}/{cut(named, _LONGEST_NAME)}"
            inside = f"{self._made.id}/{inside}{f' {count}' if count else ''}"
            place = f"{self._place}.nodes[{number}].{named}"
            written = _Writer(self._program, body, None, inside, place, self._depth + 1)
            made.bodies.append(written._made)

    def _outputs(self, outputs: list[Any], specs: list[Any]) -> None:
        made = Node("output", "outputs", "", "")
        for number, given in enumerate(outputs):
            what = str(number)
            if number < len(specs):
                kind, held = fields.expect_one_of(specs[number])
                held = fields.expect_object(held)
                target = next((v for k, v in held.items() if k != "arg" and type(v) is str), "")
                what += "" if kind == "user_output" else f" {kind.replace('_', ' ')} {target}"
            values = _names_in(given)
            made.arguments += [self._argument(what, value) for value in values]
            if shown := values[0] if values else cut(str(readable(given))):
                made.constants.append((f"output {what}", shown))
        self._add(made)


def _stack_of(node: Any) -> str:
    """Return the `nn_module_stack` of a node; "" if it is missing or damaged."""
    metadata = node.get("metadata") if type(node) is dict else None
    stack = metadata.get("nn_module_stack") if type(metadata) is dict else None
    return stack if type(stack) is str else ""


def _tensor_in(argument: Any) -> str | None:
    """Return the name of a tensor argument; None for other arguments."""
    if type(argument) is dict and len(argument) == 1:
        tensor = argument.get("as_tensor")
        name = tensor.get("name") if type(tensor) is dict else None
        return name if type(name) is str else None
    return None


def _names_in(value: Any) -> list[str]:
    """Return the names of a graph's values that an argument or result refers to."""
    return [name for _, name in values_in(value)]


def _shown(value: Any) -> str | None:
    """Return the text of an argument that is not a graph's value; None if it has no text."""
    shown = cut(str(readable(value)))
    is_empty_text = type(value) is dict and len(value) == 1 and "" in value.values()
    return shown if shown or is_empty_text else None
