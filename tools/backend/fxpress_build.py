"""Builds fxpress against the installed torch: a build backend that wraps scikit-build-core's.

pip builds in an isolated environment, where it would install another torch, of gigabytes and
perhaps of another release. This backend searches for torch where fxpress will be installed, and
makes torch a requirement of the build only if it is not there. The environment variable
FXPRESS_TORCH names other folders of torch, separated by colons; an extension is built for each.

Run as a program, it prints the folders, separated by semicolons.
"""

from __future__ import annotations

import json
import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

_TORCH = "torch>=2.11"  # as in pyproject.toml
_Settings = dict[str, Any] | None


def torch_folders() -> list[str]:
    """Return the folders of torch to build against; empty if there is no torch."""
    named = os.environ.get("FXPRESS_TORCH")
    if named:
        return [folder for folder in named.split(os.pathsep) if folder]
    return list(_installed())[:1]


def _installed() -> Iterator[str]:
    # In pip's isolated environment, too, these paths name the environment to install into.
    places = [sysconfig.get_path("platlib"), sysconfig.get_path("purelib")]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    for found in distributions(name="torch", path=[*places, *sys.path]):
        folder = Path(str(found.locate_file("torch")))
        if (folder / "include").is_dir():
            yield folder.as_posix()


def _with_torch(requirements: list[str]) -> list[str]:
    return requirements if torch_folders() else [*requirements, _TORCH]


def _settings(given: _Settings) -> dict[str, Any]:
    return {"cmake.define.FXPRESS_TORCH": ";".join(torch_folders()), **(given or {})}


def _keep_objects() -> None:
    """Keep the object files of an earlier build, which scikit-build-core would delete.

    It deletes them with CMake's cache if pip has removed the environment of the earlier build.
    The object files are still valid: the compiler's commands do not contain the environment's path,
    and Ninja compares commands and times.
    """
    for record in Path("build").glob("*/.skbuild-info.json"):
        info = json.loads(record.read_text(encoding="utf-8"))
        same_source = info["source_dir"] == str(Path.cwd())
        if same_source and not Path(info["skbuild_path"]).exists():
            record.unlink()
            record.with_name("CMakeCache.txt").unlink(missing_ok=True)


def get_requires_for_build_wheel(config_settings: _Settings = None) -> list[str]:
    """Return the requirements for building a wheel, in addition to the build system's."""
    from scikit_build_core import build

    return _with_torch(build.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: _Settings = None) -> list[str]:
    """Return the requirements for an editable build, in addition to the build system's."""
    from scikit_build_core import build

    return _with_torch(build.get_requires_for_build_editable(config_settings))


def get_requires_for_build_sdist(config_settings: _Settings = None) -> list[str]:
    """Return the requirements for building an sdist, which does not need torch."""
    from scikit_build_core import build

    return build.get_requires_for_build_sdist(config_settings)


def prepare_metadata_for_build_wheel(directory: str, config_settings: _Settings = None) -> str:
    """Write the metadata of a wheel, without a build."""
    from scikit_build_core import build

    return build.prepare_metadata_for_build_wheel(directory, _settings(config_settings))


def prepare_metadata_for_build_editable(directory: str, config_settings: _Settings = None) -> str:
    """Write the metadata of an editable install, without a build."""
    from scikit_build_core import build

    return build.prepare_metadata_for_build_editable(directory, _settings(config_settings))


def build_wheel(
    directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel, and return its name."""
    from scikit_build_core import build

    _keep_objects()
    return build.build_wheel(directory, _settings(config_settings), metadata_directory)


def build_editable(
    directory: str, config_settings: _Settings = None, metadata_directory: str | None = None
) -> str:
    """Build an editable wheel, and return its name."""
    from scikit_build_core import build

    return build.build_editable(directory, _settings(config_settings), metadata_directory)


def build_sdist(directory: str, config_settings: _Settings = None) -> str:
    """Build an sdist, and return its name."""
    from scikit_build_core import build

    return build.build_sdist(directory, config_settings)


if __name__ == "__main__":
    print(";".join(torch_folders()), end="")
