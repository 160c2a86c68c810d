"""Read a manifest of stages, which may be damaged or hostile."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

from fxpress._distributed.pipeline.errors import PipelineError
from fxpress._distributed.stages.documents import Fields, read
from fxpress._distributed.stages.errors import StageError
from fxpress._distributed.stages.manifest import FORMAT, VERSION
from fxpress._distributed.stages.seal import is_damaged


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
        bytes: of its parameters, buffers and constants.
    """

    file: str
    records: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    bytes: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a manifest says.

    Attributes:
        digest: SHA-256 of its bytes.
        plan: the digest of the plan that the program was cut by.
        torch: the version of torch that wrote it.
        graph_hash: of the whole program.
        in_spec, out_spec: the trees of what the program takes and returns, as texts.
        inputs: of the whole program, in order.
        results: of the whole program, in order.
        stages: in order.
        shared: the tensors of which several stages have a copy: their names, and the stages.
    """

    digest: str
    plan: str
    torch: str
    graph_hash: str
    in_spec: str
    out_spec: str
    inputs: tuple[Value, ...]
    results: tuple[Result, ...]
    stages: tuple[StageFacts, ...]
    shared: tuple[tuple[tuple[str, ...], tuple[int, ...]], ...]


def read_manifest(data: bytes) -> Manifest:
    """Return what a manifest says.

    Raises:
        PipelineError: it is no manifest, or damaged; the message says where.
    """
    if is_damaged(data):
        raise PipelineError("the manifest of the stages is damaged: its checksum is wrong")
    try:
        made = _manifest(read(data.decode(), FORMAT, VERSION), hashlib.sha256(data).hexdigest())
    except UnicodeDecodeError:
        raise PipelineError("the manifest of the stages is no text") from None
    except StageError as error:
        raise PipelineError(f"the manifest of the stages: {error}") from None
    _check_sources(made)
    return made


def _manifest(fields: Fields, digest: str) -> Manifest:
    stages = tuple(_stage(each) for each in fields.parts("stages"))
    shared = []
    for each in fields.parts("shared"):
        numbers = each.integers("stages")
        each.require(all(number < len(stages) for number in numbers), "stages")
        shared.append((each.texts("names"), numbers))
    return Manifest(
        digest=digest,
        plan=fields.part("plan").text("digest"),
        torch=fields.text("torch"),
        graph_hash=fields.part("source").text("graph_hash"),
        in_spec=fields.text("in_spec"),
        out_spec=fields.text("out_spec"),
        inputs=tuple(_value(each) for each in fields.parts("inputs")),
        results=tuple(_result(each) for each in fields.parts("outputs")),
        stages=stages,
        shared=tuple(shared),
    )


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
            raise PipelineError(
                f"the manifest is damaged: stage {user} takes {name!r} from nowhere"
            )
    every = [*given, *(name for each in outputs for name in each)]
    if len(set(every)) < len(every) or not made.stages:
        raise PipelineError("the manifest is damaged: it has no stages, or a name twice")


def _optional(fields: Fields, name: str) -> str | None:
    return fields.text(name) if fields.has(name) else None


def _stage(fields: Fields) -> StageFacts:
    return StageFacts(
        file=_optional(fields, "file") or "",
        records=_optional(fields, "records") or "",
        inputs=tuple(_value(each, is_input=True) for each in fields.parts("inputs")),
        outputs=tuple(_value(each) for each in fields.parts("outputs")),
        bytes=fields.integer("state_bytes"),
    )


def _value(fields: Fields, *, is_input: bool = False) -> Value:
    kind = fields.text("type")
    is_tensor = kind == "tensor"
    shape = fields.plain("shape") if is_tensor else []
    fields.require(
        isinstance(shape, list) and all(isinstance(size, (int, str)) for size in shape), "shape"
    )
    order = fields.integers("order") if fields.has("order") else None
    fields.require(order is None or sorted(order) == list(range(len(shape))), "order")
    return Value(
        name=fields.text("name"),
        type=kind,
        dtype=fields.text("dtype") if is_tensor else "",
        shape=tuple(shape),
        order=order,
        source=_source(fields.part("from")) if is_input else None,
    )


def _source(fields: Fields) -> tuple[int | None, str]:
    if fields.has("input"):
        return None, fields.text("input")
    return fields.integer("stage"), fields.text("output")


def _result(fields: Fields) -> Result:
    if fields.has("from"):
        return Result(_source(fields.part("from")), None)
    return Result(None, fields.plain("constant"))
