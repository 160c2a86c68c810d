"""Convert exported programs to and from objects of torch's schema."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

import torch
from torch.export import ExportedProgram

from fxpress._files.format.torch_facts import allowed_names
from fxpress._files.serde.facts import deserialize_range_constraints
from fxpress._files.serde.limits import Budget, Limits, sizes_of
from fxpress._files.serde.program import serialize_parts
from fxpress._files.serde.reading import check_version, decode
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._torch import serde as compat


@final
class ExportedProgramSerializer(metaclass=compat.Final):  # type: ignore[metaclass]
    """Write exported programs as objects of torch's schema.

    Stands in for `torch._export.serde.serialize.ExportedProgramSerializer`.

    Args:
        opset_version: operator set -> version; "aten" is added if it is missing.
        pickle_protocol: the pickle protocol for state, constants and example inputs.

    Example:
        >>> from fxpress.serialize import ExportedProgramSerializer
        >>> ExportedProgramSerializer().serialize(program).exported_program.schema_version
        SchemaVersion(major=..., minor=...)
    """

    def __init__(
        self, opset_version: dict[str, int] | None = None, pickle_protocol: int = 2
    ) -> None:
        self.opset_version = compat.with_aten(opset_version)
        self.pickle_protocol = pickle_protocol

    def serialize(
        self,
        exported_program: ExportedProgram,
        *,
        serialize_state_dict: bool = True,
        serialize_constants: bool = True,
        serialize_example_inputs: bool = True,
    ) -> Any:
        """Return a program as an object of the schema, with state, constants and inputs as bytes.

        Args:
            exported_program: the program, which is not modified.
            serialize_state_dict, serialize_constants, serialize_example_inputs: whether to write
                these parts; a part that is left out is empty.

        Returns:
            A `torch._export.serde.serialize._SerializedProgram`.

        Raises:
            fxpress.SerializeError: a node or object cannot be written, or the program is not valid.
            fxpress.UnsupportedError: fxpress cannot write a part of the program.
            AssertionError: a constant and an object of the graph have the same name.
            TypeError: an argument is of a wrong type.
            ValueError: there is no such pickle protocol.
        """
        text, *others = serialize_parts(
            exported_program,
            self.opset_version,
            self.pickle_protocol,
            (serialize_state_dict, serialize_constants, serialize_example_inputs),
        )
        program = SCHEMA.read(text, "ExportedProgram").field(CLASSES, "", True)
        program.torch_version = torch.__version__  # keep its type, a subclass of str
        return compat.SerializedProgram(program, *others)


@final
class ExportedProgramDeserializer(metaclass=compat.Final):  # type: ignore[metaclass]
    """Read exported programs from objects of torch's schema.

    Stands in for `torch._export.serde.serialize.ExportedProgramDeserializer`.

    Args:
        expected_opset_version: ignored, as in torch.

    Example:
        >>> from fxpress.serialize import ExportedProgramDeserializer, ExportedProgramSerializer
        >>> stored = ExportedProgramSerializer().serialize(program)
        >>> reader = ExportedProgramDeserializer()
        >>> read = reader.deserialize(stored.exported_program, program.state_dict, {})
        >>> fxpress.diff(read, program)
        []
    """

    def __init__(self, expected_opset_version: dict[str, int] | None = None) -> None:
        self.expected_opset_version = compat.with_aten(expected_opset_version)

    def deserialize_range_constraints(
        self, symbol_name_to_range: dict[str, Any], symbol_name_to_symbol: dict[str, Any]
    ) -> dict[Any, Any]:
        """Return symbol -> range; log a warning for a name that does not have a symbol."""
        return deserialize_range_constraints(symbol_name_to_range, symbol_name_to_symbol)

    def deserialize(
        self,
        exported_program: Any,
        state_dict: Any,
        constants: Any,
        example_inputs: Any = None,
        *,
        _unsafe_skip_version_check: bool = False,
        allow_pickle: bool = False,
        allow_operators: Iterable[str] = (),
        limits: Limits | None = None,
    ) -> ExportedProgram:
        """Return the program that an object of the schema describes.

        Args:
            exported_program: a `schema.ExportedProgram`, which is not modified.
            state_dict, constants, example_inputs: bytes of `torch.save`, or the values.
            _unsafe_skip_version_check: accept schemas of another major version.
            allow_pickle: unpickle parts that `torch.load(weights_only=True)` rejects, which may run
                any code. Example inputs that cannot be read are left out with a warning.
            allow_operators: operators or namespaces that the program may call; see `deserialize`.
            limits: the limits on the cost of reading; None: the defaults.

        Raises:
            fxpress.LimitError: reading would exceed the limits.
            fxpress.SerializeError: a part is damaged, names an operator or class that is not
                registered, or needs `allow_pickle` or `allow_operators`; or torch's verifier
                rejects the program.
            fxpress.UnsupportedError: fxpress cannot read a part of the program.
            AssertionError: `exported_program` is not a `schema.ExportedProgram`.
            TypeError: an argument is of a wrong type.
        """
        if not isinstance(exported_program, compat.schema.ExportedProgram):
            raise AssertionError(f"expected ExportedProgram, got {type(exported_program).__name__}")
        check_version(exported_program.schema_version, _unsafe_skip_version_check)
        document = SCHEMA.to_document(CLASSES, exported_program)
        size = document.size + sizes_of(state_dict, constants, example_inputs)
        return decode(
            document,
            state_dict,
            constants,
            example_inputs,
            allow_pickle=allow_pickle,
            allowed=allowed_names(allow_operators),
            budget=Budget(limits, size),
        )
