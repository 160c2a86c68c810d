from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from torch import Tensor
from torch.export import ExportGraphSignature, ModuleCallEntry
from torch.fx import Graph, GraphModule, Node
from torch.nn import Module
from torch.utils._pytree import TreeSpec

from fxpress._unflatten.source import Source

CAPTURED_OUTPUT_KINDS: tuple[str, ...]
INPUT_KINDS: tuple[str, ...]
OUTPUT_KINDS: tuple[str, ...]

_F = TypeVar("_F", bound=Callable[..., Any])

class ComputedAttribute:
    """A data descriptor of `instance.__dict__[name]`; `compute(instance)` makes a missing value."""

    name: str
    def __init__(self, name: str, compute: Callable[[Any], Any], /) -> None: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...
    def __set__(self, instance: object, value: object, /) -> None: ...
    def __delete__(self, instance: object, /) -> None: ...

class DeferredAttribute:
    """A data descriptor that calls `materialize` at the first access, and repeats the access."""

    name: str
    def __init__(self, name: str, /) -> None: ...
    def __get__(self, instance: object, owner: type | None = None, /) -> Any: ...
    def __set__(self, instance: object, value: object, /) -> None: ...

class CommonSubexpressions:
    """The common subexpressions of Python expressions.

    `count` must be called for all expressions before the first `replace`.
    """

    def __init__(self) -> None: ...
    def count(self, text: str, /) -> int | None: ...
    def replace(self, expression: int, /) -> tuple[list[str], str]: ...
    def count_part(self, text: str, /) -> None: ...
    def is_common(self, text: str, /) -> bool: ...
    def variable(self, text: str, /) -> str | None: ...
    def new_variable(self, text: str, /) -> str: ...

class GcPause:
    """A `with` block in which the garbage collector is paused; counted across threads."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class RareCollections:
    """A `with` block in which the collector runs rarely, in all threads; blocks may overlap."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Block:
    """A `with` block that begins with one function and ends with another.

    The second function gets the result of the first. Where both are built in, a signal handler
    cannot raise in between.
    """

    def __init__(self, begin: Callable[[], Any], end: Callable[[Any], object], /) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

# A policy, originals and their stand-ins, and built-in functions to call when names have changed.
Prepared: TypeAlias = tuple[
    Literal["raise", "torch"], list[tuple[object, object]], list[Callable[[], object]]
]

class Installation:
    """The open leases, and the objects that they have replaced."""

    def __init__(self) -> None: ...
    def acquire(self, prepared: Prepared, /) -> None: ...
    def release_newest(self) -> None:
        """Release the newest lease that is not a block's; RuntimeError when there is none."""

    @property
    def policy(self) -> Literal["raise", "torch"] | None: ...
    @property
    def leases(self) -> int: ...

class InstalledBlock:
    """A lease for the length of a `with` block."""

    def __init__(
        self,
        installation: Installation,
        prepare: Callable[[], Prepared],
        decorate: Callable[[Any], Any],
        /,
    ) -> None: ...
    def __call__(self, function: _F, /) -> _F:
        """Return the function with a block around each call."""

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

def exchange_attribute(owner: object, name: str, value: Any, /) -> Any:
    """Set an attribute, and return its old value."""

def forget_keys(dict: dict[Any, Any], parts: tuple[object, ...], /) -> None:
    """Remove the keys that are tuples with one of the parts in them."""

def end_pauses_of_other_threads() -> None:
    """End the pauses of the collector that threads of the parent hold, in a forked child."""

def build_info() -> dict[str, Any]: ...
def gc_pauses() -> int:
    """Return the number of pauses of the garbage collector in force; 0 outside of native calls."""

def initialize(objects: dict[str, object], names: dict[str, str]) -> None: ...
def insert_after(dict: dict[str, Any], key: str, items: dict[str, Any]) -> None:
    """Insert items right behind `key`, keeping the order of the rest."""

def python_source(
    graph: Graph,
) -> tuple[str, dict[str, Any], dict[int, int | None], int, bytes | None, tuple[str, ...]] | None:
    """Return source, globals, line numbers, prologue line, shape and local names.

    The shape is equal for sources that differ only in local names of the same length. It is None
    when the names cannot be told from the rest of the text, when compiling the source runs more
    than a `def`, or when the source is very long. The result is None for a graph whose code only
    torch's generator can write.
    """

def creation_times(modules: Sequence[GraphModule], repeats: int) -> list[float]:
    """Return, for each repeat, the seconds to create the modules again from known parts."""

def rewrite_captured(
    module: GraphModule,
    inputs: list[dict[str, Any]],
    places: list[int | str | None],
    outputs: list[tuple[int, Any]],
    module_paths: dict[str, str],
    birth: dict[str, object],
) -> GraphModule:
    """Return a module with a captured graph, and other inputs and outputs.

    The module takes the flat inputs of the caller, and names no module around the callable. The
    arguments after `module` are the fields of `RewritePlan` in `csrc/capture/rewrite.h`.

    Raises:
        IndexError, KeyError, ValueError: the plan does not fit the graph.
    """

def clean_name(name: str) -> str:
    """Return a name without the module around the callable; AttributeError if it is no str."""

def clean_stacks(graph: Graph, drop_self: bool) -> None:
    """Clean the nn_module_stack and the source_fn_stack of all nodes."""

def class_attribute(type: type, name: str, missing: object, /) -> Any:
    """Return the class's attribute, as CPython finds it; `missing` where it has none."""

def has_empty_tables(module: object, names: tuple[str, ...], /) -> bool:
    """Return whether these attributes are empty plain dicts of the object itself."""

def has_plain_tables(namespace: dict[str, Any], names: tuple[str, ...], /) -> bool:
    """Return whether all of these values are dicts, and not of a subclass."""

def path_without_tables(path: str, /) -> str:
    """Return `L['m']._modules['a'].b` as `L['m'].a.b`, and likewise for parameters and buffers."""

def submodule_name(partition: str, /) -> str:
    """Return the name of the submodule of a partition."""

def make_graph_module(root: Module, graph: Graph, /) -> GraphModule:
    """Return `torch.fx.GraphModule(root, graph)`; its source is generated when it is needed."""

class ProgramState:
    """The values for the names of a program's state, in the order in which torch assigns them.

    Values of one group are one object or see the same data. Unless `copies_unused`, values that
    share no data with an input of the graph are not copied.

    Raises:
        KeyError: the specs name state that does not exist.
        AssertionError: specs or constants that an export does not write.
    """

    def __init__(
        self,
        *,
        names: list[str],
        values: list[Any],
        constants_begin: int,
        groups: list[int],
        specs: Sequence[Any],
        check_constant: Callable[[str, Any], None],
        copies_unused: bool,
    ) -> None: ...
    def wanted(self) -> tuple[list[Any], list[bool]]:
        """Return the values to copy, and whether each copy is a parameter."""

    def fill(self, copies: list[Any], /) -> None:
        """Take the copies."""

def unflatten(
    source: Source, root: Module, /
) -> tuple[str | None, list[tuple[Node, list[str], int]]]:
    """Fill `root`. Return its class, and (node, paths, number of cut paths) for each cut stack."""

def outline_submodules(
    source: Source, root: Module, /
) -> tuple[list[tuple[str, str, Module, Node, str, int, Module]], list[tuple[str, str, Module]]]:
    """Outline into `root`, and return its calls and attributes.

    A call is a module id and the fields of `_SubmoduleEntry`. An attribute is the call name, target
    and module of a get_attr node.
    """

def plain_creation_times(modules: Sequence[Module], repeats: int) -> list[float]:
    """Return the `creation_times` of modules that run their `graph`: a Graph and nn.Module each."""

def split_module(
    module: GraphModule,
    callback: Callable[[Node], Any],
    qualname_map: dict[str, str] | None,
    keep_original_order: bool,
    keep_original_node_name: bool,
    keep_original_input_name: bool,
    partition_affix: str | None,
    tuple_return: bool,
    torch_lazy: bool,
    debug: Callable[..., None] | None,
    /,
) -> GraphModule: ...
def split_module_simple(
    module: GraphModule, node_to_partition: dict[Node, int], affix: str | None, /
) -> GraphModule: ...
def detect_dependencies(
    module: GraphModule, node_to_partition: dict[Node, int], /
) -> tuple[dict[int, Graph], dict[int, dict[str, Node]], dict[int, dict[str, Node]], list[int]]: ...
def clone_nodes_into_partitions(
    module: GraphModule,
    graphs: dict[int, Graph],
    inputs: dict[int, dict[str, Node]],
    outputs: dict[int, dict[str, Node]],
    partitions: list[int],
    /,
) -> dict[int, dict[Node, Node]]: ...
def build_stitching_graph(
    module: GraphModule,
    graphs: dict[int, Graph],
    inputs: dict[int, dict[str, Node]],
    outputs: dict[int, dict[str, Node]],
    partitions: list[int],
    affix: str | None,
    /,
) -> GraphModule: ...
def make_lite_graph_module(
    graph: Graph, modules: dict[str, GraphModule] | None, /
) -> GraphModule: ...
def initialize_serde(objects: dict[str, Any], /) -> None: ...

class Budget:
    """The memory in bytes and the depth that are left for a load; LimitError when too few are."""

    used: int  # bytes that were charged
    def __init__(self, memory: int, depth: int, /) -> None: ...
    def charge(self, bytes: int, /) -> None: ...
    def grow(self, bytes: int, /) -> None: ...
    def set_place(self, place: str, /) -> None: ...

def is_nested_deeper(text: str | bytes, depth: int, /) -> bool:
    """Return whether brackets of a JSON text are nested deeper than `depth`."""

def scan_pickle(data: bytes, budget: Budget, /) -> tuple[int, int, bool]:
    """Return (elements, depth, whether the value contains itself) of the value of a pickle."""

class SchemaClasses:
    def __init__(
        self, schema: Schema, classes: list[type[Any]], make_tag: Callable[[str, type[Any]], str], /
    ) -> None: ...
    def write(self, object: Any, /) -> bytes: ...

def passes_gate(rule: str, text: str, /) -> bool: ...
def first_refused(rule: str, texts: Iterable[Any], /) -> Any:
    """Return the first value that is no text, or breaks the rule; None when there is none."""

def gate_rules() -> dict[str, str]:
    """Return the name of each rule, and the message for a text that breaks it."""

class Document:
    """A value of the schema that was read."""

    size: int  # bytes in memory
    def field(self, classes: SchemaClasses, path: str, /) -> Any: ...
    def targets(self) -> list[str]: ...
    def payloads(self) -> list[tuple[str, str, bool, bool, tuple[Any, ...] | None]]:
        """Return the entries of a PayloadConfig: (name, record, is_param, use_pickle, metadata)."""

    def hash(
        self,
        traits: dict[str, tuple[list[str], list[str], bool, bool, bool]],
        values: dict[str, bytes],
        /,
    ) -> tuple[bytes, bytes]: ...

class GraphReader:
    """A graph that is read from one document, or from parts of one."""

    graph: Graph
    root: Module
    constants: dict[str, Any]
    signature: Any
    scope: int  # a number of the open graph's own
    def __init__(
        self, classes: SchemaClasses, values: Any, constants: dict[str, Any], /
    ) -> None: ...
    def program(self, document: Document, /) -> tuple[GraphModule, Any, list[Any], bool]: ...
    def part(self, kind: str, document: Document, extra: Any, /) -> Any: ...
    def open(self) -> None: ...
    def close(self) -> None: ...
    def forget_values(self) -> None: ...
    def name_node(self, node: Node, name: str, /) -> None: ...
    def value(self, scope: int, name: str, /) -> Any: ...
    def node(self, scope: int, name: str, /) -> Node | None: ...
    def nodes(self, scope: int, /) -> dict[str, Node]: ...
    def value_names(self, scope: int, /) -> list[str]: ...

def is_surely_valid(
    signature: Any,
    calls: list[Any],
    to_check: tuple[list[GraphModule], dict[str, Any], dict[str, Any], bool],
    /,
) -> bool: ...

class Schema:
    def read(self, text: bytes, type: str, budget: Budget | None = None, /) -> Document: ...
    def to_document(self, classes: SchemaClasses, object: Any, /) -> Document: ...
    def canonical(
        self, classes: SchemaClasses, program: Any, constants: Iterable[str], /
    ) -> Any: ...
    def canonical_graph(
        self,
        classes: SchemaClasses,
        graph: Any,
        constants: Iterable[str],
        names: dict[str, str],
        /,
    ) -> Any: ...
    def __init__(
        self, types: list[tuple[str, bool, list[tuple[str, str, str | None]]]], /
    ) -> None: ...
    def type_names(self) -> list[str]: ...
    def rules(self) -> list[tuple[str, str, str | None, bool]]:
        """Return each field's rule: (type, field, rule, whether native code reads the field)."""

    def difference(self) -> str: ...
    def encode_payload_config(
        self, entries: Iterable[tuple[str, str, Tensor | None, bool, bool]], /
    ) -> bytes:
        """Encode entries of (name, record, tensor, is a parameter, is pickled)."""

    def encode_tensor_meta(self, tensor: Tensor, /) -> bytes: ...
    def encode_document(
        self,
        graph_module: GraphModule,
        signature: ExportGraphSignature,
        calls: list[ModuleCallEntry],
        facts: dict[str, Any],
        objects: dict[str, Any],
        treespec: Callable[[TreeSpec], str],
        /,
    ) -> Document: ...
    def encode_part(
        self,
        kind: str,
        values: tuple[Any, ...],
        objects: dict[str, Any],
        treespec: Callable[[TreeSpec], str],
        results: list[tuple[str, Any]],
        merged: dict[str, str],
        /,
    ) -> Document: ...
    def encode_program(
        self,
        graph_module: GraphModule,
        signature: ExportGraphSignature,
        calls: list[ModuleCallEntry],
        facts: dict[str, Any],
        objects: dict[str, Any],
        treespec: Callable[[TreeSpec], str],
        to_check: tuple[list[GraphModule], dict[str, Any], dict[str, Any], bool] | None,
        /,
    ) -> bytes | None: ...

class ArchiveError(RuntimeError):
    """An archive is damaged, or used wrongly."""

class ArchiveWriter:
    """A writer of zip files like torch's PyTorchFileWriter; for one thread at a time."""

    def __init__(
        self,
        target: int | Callable[[memoryview], Any],
        root: str,
        report: Callable[[int], Any] | None = None,
    ) -> None: ...
    def begin(self, name: str, size: int, /) -> None: ...
    def append(self, data: Any, /) -> None: ...
    def add_memory(self, parts: Sequence[tuple[str, int, int, int, int]], /) -> None:
        """Write memory as records: (name, bytes of the record, start, address, bytes)."""

    def end(self) -> None: ...
    def add(self, name: str, data: Any, /) -> None: ...
    def finish(self) -> None: ...
    def has_record(self, name: str | bytes, /) -> bool: ...
    def count_records(self, prefix: str | bytes, /) -> int:
        """Return the number of records whose names start with a prefix."""

    @property
    def is_finished(self) -> bool: ...

class ArchiveReader:
    """A reader of a zip file's directory and records; any number of threads may use it."""

    def __init__(self, source: Any, start: int = 0) -> None: ...
    def records(self) -> dict[str, tuple[int, int, int, int, bool]]:
        """Return name -> (offset, stored, size, crc, is_deflated), in the directory's order."""

    def stored_bytes(self, name: str, /) -> bytes: ...
    def copy_stored(self, name: str, size: int, address: int, /) -> None:
        """Copy a record's stored bytes into memory; ValueError when their number is not `size`."""

    def read_into(
        self,
        targets: Sequence[tuple[str, int, int, int]],
        check: bool,
        threads: int,
        report: Callable[[int], Any] | None = None,
    ) -> list[int]:
        """Fill memory with parts of records (name, start, bytes, address); return checksums."""

def crc32(data: Any, /) -> int: ...
def crc32_of_both(first: int, second: int, second_length: int) -> int: ...
