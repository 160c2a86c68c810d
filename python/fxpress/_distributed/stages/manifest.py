"""Write and read `manifest.json`, and write `state.json`. Only this module defines their fields.

`manifest_of` describes stages to be written; `read_manifest` reads a manifest, which may be damaged
or hostile.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fxpress._base.observing.text import bytes_text, counted_text, printable
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.cut import Cut, Stage, shared_of_cut
from fxpress._distributed.stages.documents import Fields, read, sealed
from fxpress._distributed.stages.ends import is_mutation, state_of, storage_of, value_of
from fxpress._distributed.stages.guards import guards_of, inputs_in
from fxpress._distributed.stages.planned import Plan
from fxpress._files.archive.contents import records_of
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.format import names
from fxpress._files.format.fields import load_json
from fxpress._files.serde.limits import Budget
from fxpress._torch.decompose import pytree
from fxpress._torch.serde import dump_treespec

_DIGITS = 12  # how many digits of a hash a repr shows
FORMAT, STATE_FORMAT, VERSION = names.MANIFEST_FORMAT, "fxpress state of stages", 1
# A checksum in an older manifest is the SHA-256 of the text in which zeros replace the checksum.
_OLD_CHECKSUM = re.compile(rb'"checksum": "([0-9a-f]{64})"')


def manifest_of(program: ExportedProgram, cut: Cut, plan: Plan, files: list[dict[str, Any]]) -> Any:
    """Return the contents of `manifest.json`; its size does not depend on the program's length."""
    ends = cut.ends
    inputs = [
        {"name": node.name, "path": path, **described(value_of(node))}
        for node, path in zip(ends.inputs, _input_paths(program), strict=True)
    ]
    guards = guards_of(program, cut, {each["name"]: each["type"] for each in inputs})
    return {
        "format": FORMAT,
        "version": VERSION,
        "fxpress": fxpress_version(),
        "torch": torch.__version__,
        "by": plan.by,
        "source": {"graph_hash": plan.graph_hash},
        "plan": plan.document(),
        "in_spec": dump_treespec(program.call_spec.in_spec),
        "out_spec": dump_treespec(program.call_spec.out_spec),
        "inputs": inputs,
        "outputs": _outputs(program, cut),
        "stages": [
            {**file, **_stage(program, cut, stage), "guards": checked}
            for stage, file, checked in zip(cut.stages, files, guards.checked, strict=True)
        ],
        "unchecked_guards": guards.unchecked,
        "shared": [
            {"names": list(names), "stages": list(stages)}
            for names, stages in shared_of_cut(program, cut)
        ],
    }


def state_of_stages(program: ExportedProgram, cut: Cut) -> Any:
    """Return the contents of `state.json`: the state of each stage."""
    return {
        "format": STATE_FORMAT,
        "version": VERSION,
        "stages": [_state(program, cut, stage) for stage in cut.stages],
    }


def fxpress_version() -> str | None:
    """Return the version of fxpress; None for sources that are not installed."""
    try:
        return importlib.metadata.version("fxpress")
    except importlib.metadata.PackageNotFoundError:
        return None


def described(value: Any) -> dict[str, Any]:
    """Describe a value: its type, and a tensor's dtype and sizes, with symbols as strings."""
    if isinstance(value, torch.Tensor):
        return {
            "type": "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": [size if isinstance(size, int) else str(size) for size in value.shape],
            **_order(value),
        }
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {"type": type(value).__name__.removeprefix("Sym").lower(), "symbol": str(value)}
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return {"type": type(value).__name__, "constant": value if is_plain else repr(value)}


def _order(value: torch.Tensor) -> dict[str, list[int]]:
    """Return {"order": dimensions by decreasing stride}; {} for the usual or an unknown order."""
    if value.layout is not torch.strided:
        return {}
    strides = [
        each.node.hint if isinstance(each, torch.SymInt) else each for each in value.stride()
    ]
    if None in strides:
        return {}
    order = sorted(range(len(strides)), key=lambda dimension: -strides[dimension])
    return {} if order == sorted(order) else {"order": order}


def _source(cut: Cut, node: Node) -> dict[str, Any]:
    """Return the source of a value: an input of the program, or an output of a stage."""
    if node in cut.ends.inputs:
        return {"input": node.name}
    return {"stage": cut.maker[node], "output": node.name}


def _outputs(program: ExportedProgram, cut: Cut) -> list[dict[str, Any]]:
    values = [value for value, spec in cut.ends.results if not is_mutation(spec)]
    found = []
    for value, path in zip(values, _output_paths(program, len(values)), strict=True):
        if isinstance(value, Node):
            source = _source(cut, value)
            found.append({"path": path, **described(value_of(value)), "from": source})
        else:
            found.append({"path": path, **described(value), "from": None})
    return found


def _state(program: ExportedProgram, cut: Cut, stage: Stage) -> list[dict[str, Any]]:
    values = state_of(program)
    found = []
    for node in stage.state:
        spec = cut.ends.state[node]
        value = values[str(spec.target)]
        size = value.nbytes if isinstance(value, torch.Tensor) else None
        kind = spec.kind.name.lower()
        found.append({"name": spec.target, "kind": kind, **described(value), "bytes": size})
    return found


def _stage(program: ExportedProgram, cut: Cut, stage: Stage) -> dict[str, Any]:
    values = state_of(program)
    sizes: dict[Any, int] = {}  # by storage
    parameters = 0
    for spec in (cut.ends.state[node] for node in stage.state):
        value = values[str(spec.target)]
        if isinstance(value, torch.Tensor):
            key = storage_of(value)
            sizes[key] = max(sizes.get(key, 0), value.nbytes)
            parameters += value.numel() if spec.kind is InputKind.PARAMETER else 0
    return {
        "operations": len(stage.operations),
        "parameters": parameters,
        "state_bytes": sum(sizes.values()),
        "inputs": [
            {"name": node.name, **described(value_of(node)), "from": _source(cut, node)}
            for node in stage.inputs
        ],
        "outputs": [{"name": node.name, **described(value_of(node))} for node in stage.outputs],
        "writes": [spec.target for _, spec in stage.mutations],
    }


def _input_paths(program: ExportedProgram) -> list[str]:
    """Return the path of each input in the arguments, such as "args[0]"."""
    spec = program.call_spec.in_spec
    numbered = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    found = []
    for (kind, *rest), _ in pytree.tree_flatten_with_path(numbered)[0]:
        found.append(("args" if kind.idx == 0 else "kwargs") + pytree.keystr(tuple(rest)))
    return found


def _output_paths(program: ExportedProgram, count: int) -> list[str]:
    """Return the path of each tensor in the program's result; a single tensor's path is empty."""
    spec = program.call_spec.out_spec
    numbered = pytree.tree_unflatten(list(range(count)), spec)
    return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(numbered)[0]]


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """An input or an output of a stage or of the entire program."""

    name: str  # the name of the value's node
    type: str  # "tensor", or the type of a number
    dtype: str  # the dtype of a tensor, such as "float32"
    # The sizes of a tensor; a symbolic size is an expression, as a string.
    shape: tuple[int | str, ...]
    # The dimensions of a tensor by decreasing stride; None if this is their order already.
    order: tuple[int, ...] | None
    # For an input of a stage: the number of the stage that outputs the value, and the value's name.
    # The number is None for an input of the program.
    source: tuple[int | None, str] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A result of the entire program: an output of a stage, an input, or a constant."""

    source: tuple[int | None, str] | None
    constant: Any


@dataclasses.dataclass(frozen=True)
class StageFacts:
    """The entry of a stage in a manifest."""

    file: str  # the name of its file; "" if all stages are in one archive
    file_bytes: int  # the size of its file; 0 if all stages are in one archive
    records: str  # the digest of the records of its file; "" if all stages are in one archive
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    bytes: int  # the bytes of its parameters, buffers and constants
    guards: tuple[str, ...]  # the guards that the stage checks


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a manifest."""

    digest: str  # SHA-256 of its bytes
    plan: str  # the digest of the plan by which the program was cut
    torch: str  # the version of torch with which the stages were saved
    graph_hash: str  # the hash of the entire program
    in_spec: str  # the serialized tree spec of the program's arguments
    out_spec: str  # the serialized tree spec of the program's result
    inputs: tuple[Value, ...]  # the inputs of the entire program, in order
    results: tuple[Result, ...]  # the results of the entire program, in order
    stages: tuple[StageFacts, ...]
    # For each tensor that several stages have copies of, its names and the numbers of these stages.
    shared: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]
    # Guards that the first stage checks, because no stage uses all of their inputs.
    unchecked_guards: tuple[str, ...]

    def __repr__(self) -> str:
        size = bytes_text(sum(stage.bytes for stage in self.stages))
        return (
            f"<Manifest: {counted_text(len(self.stages), 'stage')}, {size} of weights, torch "
            f"{printable(self.torch)}, program {printable(self.graph_hash[:_DIGITS])}>"
        )


def facts_of_file(path: Path) -> dict[str, Any]:
    """Return the manifest's fields that describe a newly written file of a stage."""
    with PT2ArchiveReader(path) as reader:
        records = digest_of_records(reader, records_of(reader, names.MODEL))
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            whole.update(part)
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "sha256": whole.hexdigest(),
        "records": records,
    }


def digest_of_records(archive: Any, records: Iterable[str]) -> str:
    """Return the SHA-256 of records' names, sizes and checksums; ArchiveError if one is missing."""
    made = hashlib.sha256()
    for name in records:
        record = archive.record(name)
        made.update(f"{name}\0{record.size}\0{record.crc}\n".encode())
    return made.hexdigest()


def with_files(data: bytes, files: list[dict[str, Any]]) -> str:
    """Return the text of a manifest after replacing the fields about the stages' files."""
    manifest = load_json(data)
    for stage, file in zip(manifest["stages"], files, strict=True):
        stage.update(file)
    content = {name: manifest[name] for name in manifest if name not in ("checksum", "digest")}
    return json.dumps(sealed(content), indent=2) + "\n"


def read_manifest(data: bytes, budget: Budget | None = None) -> Manifest:
    """Parse a manifest; StageError, which names the field, if it is damaged or not a manifest."""
    if _has_wrong_checksum(data):
        raise StageError("the manifest of the stages is damaged: its checksum is wrong")
    try:
        fields = read(data, FORMAT, VERSION, budget or Budget(None, len(data)))
        if fields.has("digest"):
            fields.check_digest()
        made = _manifest(fields, hashlib.sha256(data).hexdigest())
    except StageError as error:
        raise StageError(f"the manifest of the stages: {error}") from None
    _check_sources(made)
    return made


def _has_wrong_checksum(data: bytes) -> bool:
    found = _OLD_CHECKSUM.search(data)
    if found is None:
        return False
    begin, end = found.span(1)
    text = data[:begin] + b"0" * (end - begin) + data[end:]
    return hashlib.sha256(text).hexdigest() != found[1].decode()


def _manifest(fields: Fields, digest: str) -> Manifest:
    stages = tuple(_stage_in(each) for each in fields.parts("stages"))
    shared = []
    for each in fields.parts("shared"):
        numbers = each.integers("stages")
        is_known = all(number < len(stages) for number in numbers)
        each.require(is_known, "stages", f"numbers below {len(stages)}")
        shared.append((each.texts("names"), numbers))
    return Manifest(
        digest=digest,
        plan=fields.part("plan").text("digest"),
        torch=fields.text("torch"),
        graph_hash=fields.part("source").text("graph_hash"),
        in_spec=fields.text("in_spec"),
        out_spec=fields.text("out_spec"),
        inputs=tuple(_value_in(each) for each in fields.parts("inputs")),
        results=tuple(_result_in(each) for each in fields.parts("outputs")),
        stages=stages,
        shared=tuple(shared),
        unchecked_guards=_texts(fields, "unchecked_guards"),
    )


def _check_sources(made: Manifest) -> None:
    """Raise StageError for a source that no earlier stage has, a wrong guard or a repeated name."""
    given = {each.name for each in made.inputs}
    outputs = [{each.name for each in stage.outputs} for stage in made.stages]
    wanted = [
        (number, value.source)
        for number, stage in enumerate(made.stages)
        for value in stage.inputs
        if value.source is not None
    ]
    wanted += [(len(outputs), each.source) for each in made.results if each.source is not None]
    for user, (maker, name) in wanted:
        known = given if maker is None else outputs[maker] if 0 <= maker < user else ()
        if name not in known:
            place = f"stage {user}" if user < len(outputs) else "the results"
            expected = (
                "the inputs of the program" if maker is None else "the outputs of a previous stage"
            )
            raise StageError(
                f"the manifest is damaged: {place}: expected one of {expected}, found {name!r}"
            )
    types = {each.name: each.type for each in made.inputs}
    for stage in made.stages:
        for guard in stage.guards:
            if inputs_in(guard, types) is None:
                raise StageError(
                    f"the manifest is damaged: {guard[:120]!r} is not a guard on inputs"
                )
    every = [*given, *(name for each in outputs for name in each)]
    if len(set(every)) < len(every):
        twice = Counter(every).most_common(1)[0][0]
        raise StageError(f"the manifest is damaged: {twice!r} is the name of two values")
    if not made.stages:
        raise StageError("the manifest is damaged: expected at least one stage, found none")


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    """Return strings; () for an older manifest without the field."""
    return fields.texts(name) if fields.has(name) else ()


def _stage_in(fields: Fields) -> StageFacts:
    return StageFacts(
        file=fields.text("file") if fields.has("file") else "",
        file_bytes=fields.integer("bytes") if fields.has("bytes") else 0,
        records=fields.text("records") if fields.has("records") else "",
        inputs=tuple(_value_in(each, is_input=True) for each in fields.parts("inputs")),
        outputs=tuple(_value_in(each) for each in fields.parts("outputs")),
        bytes=fields.integer("state_bytes"),
        guards=_texts(fields, "guards"),
    )


def _value_in(fields: Fields, *, is_input: bool = False) -> Value:
    kind = fields.text("type")
    is_tensor = kind == "tensor"
    shape = fields.plain("shape") if is_tensor else []
    fields.require(
        isinstance(shape, list) and all(isinstance(size, (int, str)) for size in shape),
        "shape",
        "a list of int or str",
    )
    order = fields.integers("order") if fields.has("order") else None
    is_order = order is None or sorted(order) == list(range(len(shape)))
    fields.require(is_order, "order", f"each number below {len(shape)} once")
    return Value(
        name=fields.text("name"),
        type=kind,
        dtype=fields.text("dtype") if is_tensor else "",
        shape=tuple(shape),
        order=order,
        source=_source_in(fields.part("from")) if is_input else None,
    )


def _source_in(fields: Fields) -> tuple[int | None, str]:
    if fields.has("input"):
        return None, fields.text("input")
    return fields.integer("stage"), fields.text("output")


def _result_in(fields: Fields) -> Result:
    if fields.has("from"):
        return Result(_source_in(fields.part("from")), None)
    return Result(None, fields.plain("constant"))
