"""Programs as objects of torch's schema, from exported programs and back."""

from __future__ import annotations

from typing import Any, final

from torch.export import ExportedProgram

from fxpress._serde.facts import deserialize_range_constraints
from fxpress._serde.limits import Budget, Limits, sizes_of
from fxpress._serde.program import serialize_parts
from fxpress._serde.reading import check_version, decode
from fxpress._serde.schema import CLASSES, SCHEMA
from fxpress._torch import serde as compat


@final
class ExportedProgramSerializer(metaclass=compat.Final):  # type: ignore[metaclass]
    """Stands in for `torch._export.serde.serialize.ExportedProgramSerializer`.

    Args:
        opset_version: operator set -> version; "aten" is added when it is missing.
        pickle_protocol: for state, constants and example inputs.
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
        """The program as an object of the schema, the other parts as bytes.

        Raises:
            fxpress.SerializeError, fxpress.UnsupportedError: see `fxpress.serialize.serialize`.
            AssertionError, TypeError, ValueError: see there.
        """
        text, *others = serialize_parts(
            exported_program,
            self.opset_version,
            self.pickle_protocol,
            (serialize_state_dict, serialize_constants, serialize_example_inputs),
        )
        program = SCHEMA.read(text, "ExportedProgram").field(CLASSES, "")
        return compat.SerializedProgram(program, *others)


@final
class ExportedProgramDeserializer(metaclass=compat.Final):  # type: ignore[metaclass]
    """Stands in for `torch._export.serde.serialize.ExportedProgramDeserializer`.

    Args:
        expected_opset_version: is not compared, as in torch.
    """

    def __init__(self, expected_opset_version: dict[str, int] | None = None) -> None:
        self.expected_opset_version = compat.with_aten(expected_opset_version)

    def deserialize_range_constraints(
        self, symbol_name_to_range: dict[str, Any], symbol_name_to_symbol: dict[str, Any]
    ) -> dict[Any, Any]:
        """The ranges by symbol; a warning for names that no symbol has."""
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
        limits: Limits | None = None,
    ) -> ExportedProgram:
        """The program that an object of the schema describes; see `fxpress.serialize.deserialize`.

        Raises:
            fxpress.SerializeError, fxpress.UnsupportedError, fxpress.LimitError: see there.
            AssertionError: `exported_program` is not a `schema.ExportedProgram`.
            TypeError: `limits` are no Limits.
        """
        if not isinstance(exported_program, compat.schema.ExportedProgram):
            raise AssertionError(f"expected ExportedProgram, got {type(exported_program).__name__}")
        check_version(exported_program.schema_version, _unsafe_skip_version_check)
        document = SCHEMA.to_document(CLASSES, exported_program)
        size = document.size + sizes_of(state_dict, constants, example_inputs)
        return decode(
            *(document, state_dict, constants, example_inputs),
            allow_pickle=allow_pickle,
            budget=Budget(limits, size),
        )
