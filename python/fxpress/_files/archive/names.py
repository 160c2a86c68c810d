"""The names of an archive's records: torch's names, and those that only fxpress writes."""

from __future__ import annotations

from torch.export.pt2_archive import constants

from fxpress._torch.versions import features

AOTINDUCTOR_DIR: str = constants.AOTINDUCTOR_DIR
ARCHIVE_FORMAT_PATH: str = constants.ARCHIVE_FORMAT_PATH
ARCHIVE_FORMAT_VALUE: str = constants.ARCHIVE_FORMAT_VALUE
ARCHIVE_VERSION_PATH: str = constants.ARCHIVE_VERSION_PATH
ARCHIVE_VERSION_VALUE: str = constants.ARCHIVE_VERSION_VALUE
CONSTANTS_DIR: str = constants.CONSTANTS_DIR
EXECUTORCH_DIR: str = constants.EXECUTORCH_DIR
EXTRA_DIR: str = constants.EXTRA_DIR
WEIGHTS_DIR: str = constants.WEIGHTS_DIR
# The prefixes of file names in these folders. A number follows each prefix.
CUSTOM_OBJECT: str = constants.CUSTOM_OBJ_FILENAME_PREFIX
OPAQUE_OBJECT: str = (
    constants.OPAQUE_OBJ_FILENAME_PREFIX if features.opaque_records else "opaque_obj_"
)
TENSOR_CONSTANT: str = constants.TENSOR_CONSTANT_FILENAME_PREFIX
WEIGHT: str = constants.WEIGHT_FILENAME_PREFIX

_MODEL_RECORD: str = constants.MODELS_FILENAME_FORMAT
_SAMPLE_INPUTS_RECORD: str = constants.SAMPLE_INPUTS_FILENAME_FORMAT
_WEIGHTS_CONFIG_RECORD: str = constants.WEIGHTS_CONFIG_FILENAME_FORMAT
_CONSTANTS_CONFIG_RECORD: str = constants.CONSTANTS_CONFIG_FILENAME_FORMAT

_WEIGHTS_FILE = "_weights_file.txt"
MODEL = "model"  # the name of a program that is saved alone


def model_record(model: str) -> str:
    """Return the name of the record of a program's graph."""
    return _MODEL_RECORD.format(model)


def sample_inputs_record(model: str) -> str:
    """Return the name of the record of a program's example inputs."""
    return _SAMPLE_INPUTS_RECORD.format(model)


def payload(kind: str, number: int) -> str:
    """Return the name of a weight or constant in its folder; `kind` is a prefix from above."""
    return f"{kind}{number}"


def weights_config_record(model: str) -> str:
    """Return the name of the record that maps entries of the state dict to their records."""
    return _WEIGHTS_CONFIG_RECORD.format(model)


def constants_config_record(model: str) -> str:
    """Return the name of the record that maps constants to their records."""
    return _CONSTANTS_CONFIG_RECORD.format(model)


def weights_file_record(model: str) -> str:
    """Return the name of the record that names the file with the weights beside the archive."""
    return f"{WEIGHTS_DIR}{model}{_WEIGHTS_FILE}"


def is_weights_file_record(record: str) -> bool:
    """Return whether the name of a record is one that `weights_file_record` returns."""
    return record.startswith(WEIGHTS_DIR) and record.endswith(_WEIGHTS_FILE)


def models_in(records: list[str]) -> list[str]:
    """Return the names of the programs in an archive."""
    prefix, suffix = _MODEL_RECORD.split("{}")
    return [
        record[len(prefix) : -len(suffix)]
        for record in records
        if record.startswith(prefix) and record.endswith(suffix)
    ]
