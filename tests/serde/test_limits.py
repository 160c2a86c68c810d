"""`archive.Limits`: each limit is found where it is reached, and named; hostile files end early."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import fxpress
from fxpress import archive, state
from fxpress._files.serde.artifacts import save_artifact
from fxpress._files.serde.expressions import parse
from fxpress._files.serde.limits import Budget
from fxpress.archive import LimitError, Limits
from fxpress.serialize import (
    ExportedProgramDeserializer,
    SerializedArtifact,
    deserialize,
    deserialize_torch_artifact,
    serialize,
)
from fxpress.split_module import split_module
from tests.support.reading_cases import dynamic, edited, nodes_of, top
from tests.support.records import read_records, write_records

TINY = Limits(memory=0, memory_per_byte=0.01)


@functools.cache
def saved() -> bytes:
    buffer = io.BytesIO()
    archive.save(top(), buffer)
    return buffer.getvalue()


@functools.cache
def written() -> SerializedArtifact:
    return serialize(top())


def reached(limit: str, read: Callable[[], Any]) -> LimitError:
    """Return the error, which names the limit and how to raise it."""
    with pytest.raises(LimitError, match=rf"limits=fxpress.archive.Limits\({limit}=") as raised:
        read()
    assert raised.value.limit == limit
    return raised.value


# ---- the class ----------------------------------------------------------------------------------


def test_limits_are_frozen_numbers() -> None:
    limits = Limits()
    with pytest.raises(dataclasses.FrozenInstanceError):
        limits.depth = 3  # type: ignore[misc]
    for wrong in (-1, True, "many", float("nan")):
        with pytest.raises(ValueError, match="memory"):
            Limits(memory=wrong)  # type: ignore[arg-type]
    assert issubclass(LimitError, fxpress.SerializeError)
    assert fxpress.LimitError is LimitError


@pytest.mark.parametrize(
    "read",
    [
        lambda limits: archive.load(io.BytesIO(saved()), limits=limits),
        lambda limits: archive.load_pt2(io.BytesIO(saved()), limits=limits),
        lambda limits: state.read(io.BytesIO(saved()), limits=limits),
        lambda limits: deserialize(written(), limits=limits),
        lambda limits: deserialize_torch_artifact(written().example_inputs, limits=limits),
    ],
    ids=["load", "load_pt2", "state.read", "deserialize", "deserialize_torch_artifact"],
)
def test_every_reader_takes_limits(read: Callable[[Limits], Any]) -> None:
    reached("memory", lambda: read(TINY))
    read(Limits())


def test_objects_of_the_schema() -> None:
    stored = fxpress.serialize.ExportedProgramSerializer().serialize(top())
    read = ExportedProgramDeserializer().deserialize
    reached("memory", lambda: read(*vars(stored).values(), limits=TINY))
    read(*vars(stored).values())


def test_threads_have_budgets_of_their_own() -> None:
    failed: list[BaseException] = []

    def run(limits: Limits) -> None:
        try:
            deserialize(written(), limits=limits)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=run, args=(each,)) for each in (TINY, Limits()) * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 4
    assert all(isinstance(e, LimitError) for e in failed)


# ---- archives -----------------------------------------------------------------------------------


def deflated(name: str, content: bytes) -> bytes:
    records = read_records(saved())
    assert name in records
    return write_records(records | {name: content}, zipfile.ZIP_DEFLATED)


def test_what_is_unpacked_counts() -> None:
    data = bytearray(deflated("archive/data/weights/weight_0", bytes(1 << 20)))
    error = reached("memory", lambda: archive.verify(data, limits=TINY))
    assert "weight_0" in error.place
    archive.verify(data)


def test_texts_count_as_their_characters_take_memory() -> None:
    """If a text has one character of four bytes, each of its characters needs four bytes."""
    limits = Limits(memory=16 << 20, memory_per_byte=0)
    for first, fits in (("a", True), ("\xe4", True), ("\u03b1", True), ("\U0001f600", False)):
        text = first + "a" * (3 << 20)
        records = read_records(saved()) | {"archive/extra/a": text.encode()}
        data = write_records(records, zipfile.ZIP_DEFLATED)

        def read(data: bytes = data) -> Any:
            return archive.load_pt2(io.BytesIO(data), limits=limits).extra_files

        if fits:
            assert read() == {"a": text}
        else:
            assert "extra/a" in reached("memory", read).place


def test_zeros_that_are_not_stored_count() -> None:
    """torch writes no bytes for tensors without memory, and reads them as zeros."""
    name = "archive/data/weights/model_weights_config.json"
    records = read_records(saved())
    config = json.loads(records[name])["config"]
    for entry in config.values():
        entry["tensor_meta"]["sizes"] = [{"as_int": 1 << 34}]
        entry["tensor_meta"]["strides"] = [{"as_int": 1}]
        entry["path_name"] = "weight_9"
    records[name] = json.dumps({"config": config}).encode()
    records["archive/data/weights/weight_9"] = b""
    data = bytearray(write_records(records))
    assert "zeros" in reached("memory", lambda: state.read(data)).place


def test_records_of_saved_inputs_that_expand() -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in read_records(written().example_inputs).items():
            if not name.endswith("data.pkl"):
                file.writestr(name, content)
            else:
                with file.open(name, "w") as record:
                    for _ in range(100):
                        record.write(bytes(1 << 20))
    artifact = dataclasses.replace(written(), example_inputs=inner.getvalue())
    reached("memory", lambda: deserialize(artifact, limits=Limits(memory=10 << 20)))


def test_a_storage_that_is_larger_than_its_record() -> None:
    """torch's reader would return memory after the record."""
    records = read_records(written().example_inputs)
    (pickled,) = (name for name in records if name.endswith("data.pkl"))
    records[pickled] = records[pickled].replace(b"K\x0c", b"K\x7f")  # 12 elements
    saved_inputs = write_records(records)
    with pytest.raises(fxpress.SerializeError, match="48 bytes, not 508"):
        deserialize_torch_artifact(saved_inputs)


# ---- pickles ------------------------------------------------------------------------------------


def pickled(content: bytes) -> bytes:
    """Return the file that `torch.save` would write, with this pickle."""
    return write_records({"x/data.pkl": content, "x/version": b"3\n", "x/byteorder": b"little"})


DOUBLED = b"\x80\x02]" + b"".join(b"q%c](h%ch%ce" % (i, i, i) for i in range(60)) + b"\x85."


@pytest.mark.parametrize(
    ("content", "limit"),
    [
        (DOUBLED, "elements"),
        (b"\x80\x02)" + b"\x85" * 600 + b".", "depth"),
    ],
    ids=["shared", "deep"],
)
def test_trees_of_pickles(content: bytes, limit: str) -> None:
    reached(limit, lambda: deserialize_torch_artifact(pickled(content)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x80\x02]q\x00h\x00a\x85.", "contains itself"),
        (b"\x80\x02c__builtin__\nbytearray\nJ\x00\x00\x00\x7f\x85R\x85.", "bytearray from a size"),
        (b"\x80\x02ctorch\nFloatTensor\nJ\x00\x00\x00\x7f\x85R\x85.", "tensor from sizes"),
        (b"\x80\x02ctorch\nTensor\nJ\x00\x00\x00\x7f\x85\x81\x85.", "tensor from sizes"),
        (
            b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x08\x00\x00\x00punycode\x86R\x85.",
            "encoding",
        ),
        (b"\x80\x02h\x05.", "has not created"),
        (b"\x80\x02e.", "a mark that"),
        (b"\x80\x02.", "stack is empty"),
        (b"\x80\x02X\xff\xff\xff\xff.", "ends too early"),
        (b"", "ends too early"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_pickles_that_are_refused(content: bytes, why: str) -> None:
    with pytest.raises(fxpress.SerializeError, match=why):
        deserialize_torch_artifact(pickled(content))


P = 2**61 - 1  # Python's hash of its multiples is 0


def equal_hashes(kind: str, count: int) -> list[Any]:
    """Return keys with the same hash, which Python compares in pairs."""
    if kind == "ints":
        return [P * i for i in range(count)]
    if kind == "complex numbers":
        return [complex(-1000003 * i, i) for i in range(count)]
    if kind == "floats":
        return [float(i) for i in range(count)]
    return [(i, P) if kind == "tuples" else str(i) for i in range(count)]


@pytest.mark.parametrize("kind", ["ints", "tuples", "complex numbers"])
def test_keys_whose_hashes_a_file_can_choose(kind: str) -> None:
    few = {"k": dict.fromkeys(equal_hashes(kind, 1000), 1)}
    assert deserialize_torch_artifact(save_artifact(few)) == few
    for many in (equal_hashes(kind, 3000), equal_hashes(kind, 1500)):
        saved = save_artifact({"k": dict.fromkeys(many, 1), "l": dict.fromkeys(many[:1000], 1)})
        with pytest.raises(fxpress.SerializeError, match="too many keys"):
            deserialize_torch_artifact(saved)


@pytest.mark.parametrize("kind", ["floats", "texts"])
def test_other_keys_may_be_many(kind: str) -> None:
    value = {"k": dict.fromkeys(equal_hashes(kind, 20_000), 1)}
    assert deserialize_torch_artifact(save_artifact(value)) == value


def test_containers_that_are_made_of_lists() -> None:
    pair = b"\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01N\x86"  # (2**64, None)
    for name in (b"OrderedDict", b"Counter"):
        content = b"\x80\x02ccollections\n" + name + b"\n](" + pair * 3000 + b"e\x85R\x85."
        with pytest.raises(fxpress.SerializeError, match="too many keys"):
            deserialize_torch_artifact(pickled(content))


def test_example_inputs_are_walked_once() -> None:
    """A path for each leaf would have 300 steps: two billion."""
    inside: Any = [1] * 100_000
    for _ in range(300):
        inside = [inside, 1]
    examples = save_artifact(((torch.ones(2, 4), inside), {}))
    start = time.process_time()
    made = deserialize(edited_examples(examples))
    assert made.example_inputs is not None
    assert time.process_time() - start < 2 + 10 * len(examples) / (1 << 20)
    small = Limits(memory=10 << 20, memory_per_byte=0)
    reached("memory", lambda: deserialize(edited_examples(examples), limits=small))


def edited_examples(examples: bytes) -> SerializedArtifact:
    return dataclasses.replace(written(), example_inputs=examples)


def test_calls_without_number_are_charged() -> None:
    content = b"\x80\x02(ccollections\nOrderedDict\nq\x00)q\x01" + b"h\x00h\x01R" * 300_000 + b"t."
    reached("memory", lambda: deserialize_torch_artifact(pickled(content)))


def test_storages_are_charged() -> None:
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" + b"0X\3\0\0\0cpuK\1tq\0Q"
    content = b"\x80\2(" + storage + b"h\0Q" * 114_000 + b"t."
    reached("memory", lambda: deserialize_torch_artifact(pickled(content)))


# ---- graphs -------------------------------------------------------------------------------------


def test_metadata_that_is_copied_to_every_result_counts() -> None:
    def edit(stored: Any) -> None:
        node = next(n for n in nodes_of(stored) if "topk" in n["target"])
        node["metadata"]["nn_module_stack"] = ";".join(f"k{i},p,t" for i in range(2000))
        values = stored["graph_module"]["graph"]["tensor_values"]
        some = next(iter(values.values()))
        for i in range(2000):
            values[f"more{i}"] = some
            node["outputs"].append({"as_tensor": {"name": f"more{i}"}})

    reached("memory", lambda: deserialize(edited(written(), edit)))


def nested(depth: int) -> SerializedArtifact:
    """Values of `from_node` within each other."""

    def edit(stored: Any) -> None:
        text = '[{"from_node": ' * depth + "null" + "}]" * depth
        nodes_of(stored)[-1]["metadata"]["from_node"] = text

    return edited(written(), edit)


def test_depth() -> None:
    reached("depth", lambda: deserialize(nested(400)))
    deserialize(nested(100))
    assert (
        "from_node"
        in reached("depth", lambda: deserialize(nested(100), limits=Limits(depth=60))).place
    )


def with_context(depth: int) -> SerializedArtifact:
    """JSON in the JSON of a tree spec."""

    def edit(stored: Any) -> None:
        signature = stored["graph_module"]["module_call_graph"][0]["signature"]
        spec = json.loads(signature["in_spec"])
        spec[1]["children_spec"][1]["context"] = "[" * depth + "]" * depth
        signature["in_spec"] = json.dumps(spec)

    return edited(written(), edit)


def with_custom(depth: int) -> SerializedArtifact:
    def edit(stored: Any) -> None:
        text = '{"a":' * depth + "1" + "}" * depth
        nodes_of(stored)[-1]["metadata"]["custom"] = text

    return edited(written(), edit)


@pytest.mark.parametrize(
    ("make", "depth"),
    [(nested, 200), (nested, 100_000), (with_context, 950), (with_custom, 950)],
)
def test_a_thread_with_a_small_stack(make: Callable[[int], SerializedArtifact], depth: int) -> None:
    """A value too deep for the stack is refused before the stack overflows."""
    artifact = make(depth)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            deserialize(artifact, limits=Limits(depth=10**9))
        except BaseException as e:
            raised.append(e)

    size = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(size)
    if depth > 900:
        (error,) = raised
        assert isinstance(error, LimitError)
        assert error.limit == "depth"


def test_the_node_in_which_a_limit_is_reached() -> None:
    def edit(stored: Any) -> None:
        sizes = stored["graph_module"]["graph"]["tensor_values"]["linear"]["sizes"]
        sizes[0]["as_expr"]["expr_str"] = "9" * 41

    error = reached("digits", lambda: deserialize(edited(serialize(dynamic()), edit)))
    assert error.place.endswith("in a node of 'torch.ops.aten.linear.default'")


def test_tree_specs_have_few_parts() -> None:
    def edit(stored: Any) -> None:
        leaf = {"type": None, "context": None, "children_spec": []}
        spec = {"type": "builtins.list", "context": "null", "children_spec": [leaf] * 1000}
        stored["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = json.dumps(
            [1, spec]
        )

    read = functools.partial(deserialize, edited(written(), edit))
    assert reached("elements", lambda: read(limits=Limits(elements=999))).place == "a tree spec"
    read(limits=Limits(elements=1001))


def test_tree_specs_and_custom_metadata_are_not_deep() -> None:
    text = '{"a":' * 600 + "1" + "}" * 600

    def spec(stored: Any) -> None:
        calls = stored["graph_module"]["module_call_graph"]
        calls[0]["signature"]["in_spec"] = f"[1, {text}]"

    def custom(stored: Any) -> None:
        nodes_of(stored)[-1]["metadata"]["custom"] = text

    def whole(stored: Any) -> None:
        stored["graph_module"]["metadata"] = {"custom": text}

    for edit in (spec, custom, whole):
        reached("depth", lambda edit=edit: deserialize(edited(written(), edit)))  # type: ignore[misc]
    assert reached("depth", lambda: deserialize(with_context(501))).place == "a tree spec"


def test_verifiers_are_few() -> None:
    def edit(stored: Any) -> None:
        stored["verifiers"] = ["TRAINING"] * 1000

    with pytest.raises(fxpress.SerializeError, match="found 1000"):
        deserialize(edited(written(), edit))


# ---- expressions --------------------------------------------------------------------------------

SUM = " + ".join(f"s{i}" for i in range(12))
POWERS = " * ".join([f"({SUM})"] * 8)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("9" * 41, "digits"),
        (f"Float('{'9' * 60}', precision=53)", "digits"),
        ("Float('1.5', precision=1000000)", "digits"),
        ("(" * 501 + "s0" + ")" * 501, "depth"),
        ("-" * 600 + "s0", "depth"),
        ("Abs(" * 501 + "s0" + ")" * 501, "depth"),
        ("s0" + "+s0" * 3000, "terms"),
        (" " * (1 << 20), "terms"),
        (f"FloorDiv({POWERS}, s99 + 1)", "terms"),
        (f"Mod({POWERS}, s99)", "terms"),
        (f"({SUM}) ** 8", "terms"),
        (f"Min({SUM}) ** 8", "terms"),
        (POWERS, "terms"),
        ("FloorDiv(" * 300 + "s0" + ", 2)" * 300, "terms"),
    ],
    ids=lambda value: value[:20],
)
def test_expressions(text: str, limit: str) -> None:
    budget = Budget(Limits(seconds=600), 0)  # more than sanitizers or a busy machine take
    reached(limit, lambda: parse(text, {}, budget))


@pytest.mark.parametrize(
    "text", ["Float('1.0e9999999999', precision=53)", "1e9999999999", "Pow(10, 1000000000)"]
)
def test_exponents(text: str) -> None:
    with pytest.raises(fxpress.SerializeError, match="exponent"):
        parse(text, {})


def test_limits_of_expressions_can_be_raised() -> None:
    large = Budget(Limits(digits=100, terms=1 << 20), 0)
    assert parse("9" * 50, {}, large) == int("9" * 50)
    assert len(parse(f"Max({', '.join(f's{i}' for i in range(30))})", {}, large).args) == 30


def test_time_of_symbolic_work() -> None:
    artifact = serialize(dynamic())
    reached(
        "seconds", lambda: deserialize(artifact, limits=Limits(seconds=0, seconds_per_megabyte=0))
    )
    deserialize(artifact)


def test_dimensions() -> None:
    def edit(stored: Any) -> None:
        graph = stored["graph_module"]["graph"]
        meta = next(m for m in graph["tensor_values"].values() if "as_expr" in json.dumps(m))
        meta["sizes"] = meta["sizes"][:1] * 100
        meta["strides"] = [{"as_int": 1}] * 100

    with pytest.raises(fxpress.SerializeError, match=r"64 dimensions .* found 100"):
        deserialize(edited(serialize(dynamic()), edit))


# ---- arguments ----------------------------------------------------------------------------------


def with_list(change: Callable[[list[Any], fx.Node], None]) -> fx.GraphModule:
    """A module with a list in the arguments of a node; the test changes the list without fx."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.cat, ([x, x],))
    graph.output(node)
    change(node.args[0], x)
    module = fx.GraphModule(torch.nn.Module(), fx.Graph())
    module._graph = graph  # without source text
    return module


def split(module: fx.GraphModule) -> fx.GraphModule:
    return split_module(module, torch.nn.Module(), lambda node: 0)


def test_shared_parts_of_arguments_are_walked_once() -> None:
    def change(items: list[Any], x: fx.Node) -> None:
        part: Any = (x,)
        for _ in range(60):  # paths: 2**60
            part = (part, part)
        list.append(items, part)

    made = split(with_list(change))
    assert [node.op for node in made.graph.nodes] == ["placeholder", "call_module", "output"]


def test_arguments_that_contain_themselves() -> None:
    with pytest.raises(ValueError, match="contains itself"):
        split(with_list(lambda items, _: list.append(items, items)))
