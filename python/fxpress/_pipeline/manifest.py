"""Read a manifest of stages, which may be damaged or hostile."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from fxpress._pipeline.errors import PipelineError
from fxpress._stages.manifest import FORMAT, VERSION

_KINDS = {str: "a text", int: "a number", list: "a list", dict: "an object"}


@dataclasses.dataclass(frozen=True)
class Value:
    """A value that a stage or the whole program takes or gives.

    Attributes:
        name: of its node.
        type: "tensor", or the type of a number.
        dtype: of a tensor, such as "float32".
        shape: of a tensor; a size that is not a number is an expression of symbols.
        order: the dimensions from the outermost in memory to the innermost; None: as they are.
        source: of an input of a stage: the number of the stage that makes it, or None if the caller
            gives it, and its name there.
    """

    name: str
    type: str
    dtype: str
    shape: tuple[int | str, ...]
    order: tuple[int, ...] | None
    source: tuple[int | None, str] | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """A result of the whole program: a value of a stage or an input, or a constant."""

    source: tuple[int | None, str] | None
    constant: Any


@dataclasses.dataclass(frozen=True)
class StageFacts:
    """What a manifest says of a stage.

    Attributes:
        file: the name of its file; "" where all stages are in one archive.
        records: the digest of the records of its file; "" where all stages are in one archive.
        inputs, outputs: in order.
        state: the names of its parameters, buffers and constants.
        bytes: of this state.
    """

    file: str
    records: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    state: tuple[str, ...]
    bytes: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a manifest says.

    Attributes:
        digest: SHA-256 of its bytes.
        torch: the version of torch that wrote it.
        graph_hash: of the whole program.
        in_spec, out_spec: the trees of what the program takes and returns, as texts; None: they
            have classes without a name in files.
        inputs: of the whole program, in order.
        results: of the whole program, in order.
        stages: in order.
        shared: the tensors of which several stages have a copy: their names, and the stages.
    """

    digest: str
    torch: str
    graph_hash: str
    in_spec: str | None
    out_spec: str | None
    inputs: tuple[Value, ...]
    results: tuple[Result, ...]
    stages: tuple[StageFacts, ...]
    shared: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]


def read_manifest(data: bytes) -> Manifest:
    """Return what a manifest says.

    Raises:
        PipelineError: it is no manifest, or damaged; the message says where.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PipelineError(f"the manifest is no JSON: {error}") from None
    at = _Place(document, "the manifest")
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise PipelineError(f"the manifest is not of the format {FORMAT!r}")
    if document.get("version") != VERSION:
        raise PipelineError(
            f"the manifest has version {document.get('version')!r}, and this is for {VERSION}"
        )
    stages = tuple(_stage(each) for each in at.items("stages"))
    shared = []
    for each in at.items("shared"):
        names = tuple(name.of(str) for name in each.items("names"))
        numbers = tuple(number.of(int) for number in each.items("stages"))
        if not all(0 <= number < len(stages) for number in numbers):
            raise each.error("names a stage that there is not")
        shared.append((names, numbers))
    made = Manifest(
        digest=hashlib.sha256(data).hexdigest(),
        torch=at.get("torch").of(str),
        graph_hash=at.get("source").get("graph_hash").of(str),
        in_spec=at.optional("in_spec", str),
        out_spec=at.optional("out_spec", str),
        inputs=tuple(_value(each) for each in at.items("inputs")),
        results=tuple(_result(each) for each in at.items("outputs")),
        stages=stages,
        shared=tuple(shared),
    )
    _check_sources(made)
    return made


def _check_sources(made: Manifest) -> None:
    """Raise PipelineError where a value comes from nowhere, or from a stage that runs later."""
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
            raise PipelineError(f"the manifest is damaged: stage {user} takes {name!r} from nowhere")
    every = [*given, *(name for each in outputs for name in each)]
    if len(set(every)) < len(every) or not made.stages:
        raise PipelineError("the manifest is damaged: it has no stages, or a name twice")


class _Place:
    """A place in a document, which knows how to name itself."""

    def __init__(self, value: Any, name: str) -> None:
        self.value, self.name = value, name

    def error(self, what: str) -> PipelineError:
        return PipelineError(f"the manifest is damaged: {self.name} {what}")

    def of(self, kind: type) -> Any:
        if not isinstance(self.value, kind) or isinstance(self.value, bool):
            raise self.error(f"is not {_KINDS[kind]}")
        return self.value

    def get(self, key: str) -> _Place:
        found = self.of(dict)
        if key not in found:
            raise self.error(f"has no {key!r}")
        return _Place(found[key], f"{self.name}.{key}" if "." in self.name else key)

    def optional(self, key: str, kind: type) -> Any:
        found = self.of(dict).get(key)
        return None if found is None else self.get(key).of(kind)

    def items(self, key: str) -> list[_Place]:
        place = self.get(key)
        return [_Place(each, f"{key}[{i}].") for i, each in enumerate(place.of(list))]


def _stage(at: _Place) -> StageFacts:
    state = at.items("state")
    return StageFacts(
        file=at.optional("file", str) or "",
        records=at.optional("records", str) or "",
        inputs=tuple(_value(each, is_input=True) for each in at.items("inputs")),
        outputs=tuple(_value(each) for each in at.items("outputs")),
        state=tuple(each.get("name").of(str) for each in state),
        bytes=sum(each.optional("bytes", int) or 0 for each in state),
    )


def _value(at: _Place, *, is_input: bool = False) -> Value:
    kind = at.get("type").of(str)
    is_tensor = kind == "tensor"
    shape = [each.value for each in at.items("shape")] if is_tensor else []
    order = [each.value for each in at.items("order")] if "order" in at.value else None
    if not all(isinstance(size, (int, str)) for size in shape):
        raise at.error("has a shape that is none")
    if order is not None and sorted(map(str, order)) != sorted(map(str, range(len(shape)))):
        raise at.error("has an order that is none of its dimensions")
    return Value(
        name=at.get("name").of(str),
        type=kind,
        dtype=at.get("dtype").of(str) if is_tensor else "",
        shape=tuple(shape),
        order=None if order is None else tuple(order),
        source=_source(at.get("from")) if is_input else None,
    )


def _source(at: _Place) -> tuple[int | None, str]:
    if "input" in at.of(dict):
        return None, at.get("input").of(str)
    return at.get("stage").of(int), at.get("output").of(str)


def _result(at: _Place) -> Result:
    source = at.get("from")
    if source.value is not None:
        return Result(_source(source), None)
    return Result(None, at.get("constant").value)
