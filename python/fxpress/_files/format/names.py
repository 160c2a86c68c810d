"""Define the names of the records in an archive: torch's names, and names that fxpress adds."""

from __future__ import annotations

from collections.abc import Iterable

AOTINDUCTOR_DIR = "data/aotinductor/"
ARCHIVE_FORMAT_PATH, ARCHIVE_FORMAT_VALUE = "archive_format", "pt2"
ARCHIVE_VERSION_PATH, ARCHIVE_VERSION_VALUE = "archive_version", "0"
CONSTANTS_DIR = "data/constants/"
EXECUTORCH_DIR = "data/executorch/"
EXTRA_DIR = "extra/"
WEIGHTS_DIR = "data/weights/"
# Prefixes of record names in the folders of weights and constants; a number follows.
CUSTOM_OBJECT = "custom_obj_"
OPAQUE_OBJECT = "opaque_obj_"
OBJECTS = (CUSTOM_OBJECT, OPAQUE_OBJECT)
TENSOR_CONSTANT = "tensor_"
WEIGHT = "weight_"

MODELS_DIR, _MODEL_SUFFIX = "models/", ".json"
_WEIGHTS_FILE = "_weights_file.txt"
# Files by which fxpress recognizes folders of stages, checkpoints and folders of safetensors files.
MANIFEST, MANIFEST_FORMAT = "manifest.json", "fxpress stages"  # file, and value of "format"
CHECKPOINT_METADATA = ".metadata"
TENSORS_INDEX, TENSORS_ALONE = "model.safetensors.index.json", "model.safetensors"
LEGACY_PROGRAM = "serialized_exported_program.json"  # the program's record in files of torch < 2.9
MODEL = "model"  # the name of a program that is alone in an archive


def model_record(model: str) -> str:
    """Return the name of the record that contains a program's graph."""
    return f"{MODELS_DIR}{model}{_MODEL_SUFFIX}"


def sample_inputs_record(model: str) -> str:
    """Return the name of the record that contains a program's example inputs."""
    return f"data/sample_inputs/{model}.pt"


def payload(prefix: str, number: int) -> str:
    """Return the name of a weight or constant in its folder, such as "weight_0"."""
    return f"{prefix}{number}"


def weights_config_record(model: str) -> str:
    """Return the name of the record that maps entries of the state dict to their records."""
    return f"{WEIGHTS_DIR}{model}_weights_config.json"


def constants_config_record(model: str) -> str:
    """Return the name of the record that maps constants to their records."""
    return f"{CONSTANTS_DIR}{model}_constants_config.json"


def shared_storages_record(model: str) -> str:
    """Return the name of the record that lists tensors which shared a storage before saving."""
    return f"{CONSTANTS_DIR}{model}_shared_storages.json"


def weights_file_record(model: str) -> str:
    """Return the name of the record that contains the name of the weights' sidecar file."""
    return f"{WEIGHTS_DIR}{model}{_WEIGHTS_FILE}"


def is_weights_file_record(record: str) -> bool:
    """Return whether `record` is the result of `weights_file_record` for some model."""
    return record.startswith(WEIGHTS_DIR) and record.endswith(_WEIGHTS_FILE)


def models_in(records: Iterable[str]) -> list[str]:
    """Return the names of the programs in an archive."""
    return [
        record[len(MODELS_DIR) : -len(_MODEL_SUFFIX)]
        for record in records
        if record.startswith(MODELS_DIR) and record.endswith(_MODEL_SUFFIX)
    ]
