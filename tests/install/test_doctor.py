"""`python -m fxpress doctor`: what works here, as text and as JSON."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest
import torch

import fxpress
from fxpress import _doctor
from fxpress._torch import versions
from fxpress._torch.probes import ROOMS


def run(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    script = f"import sys; sys.argv[1:] = {list(arguments)!r}\n{before}\n"
    script += "import runpy; runpy.run_module('fxpress', run_name='__main__', alter_sys=True)"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


def test_report() -> None:
    report = _doctor.examine()
    assert report == json.loads(json.dumps(report))
    assert report["versions"]["torch"] == torch.__version__
    assert report["versions"]["python"] == platform.python_version()
    assert all(room == {"works": True, "reason": None} for room in report["rooms"].values())
    assert versions.minor() in report["native"]["for_torch"]
    assert report["devices"][0] == "cpu"


def test_install_is_seen() -> None:
    with fxpress.installed(on_unsupported="torch"):
        install = _doctor.examine()["install"]
        assert install["in_force"] is True
        assert install["policy"] == "torch"
        assert install["replaces"]["torch.export.unflatten"] > 10
        assert "torch.export.unflatten" in _doctor.show(_doctor.examine())
    after = _doctor.examine()["install"]
    assert after["in_force"] is False
    assert after["replaces"] == {}


@pytest.mark.slow("a process of its own")
def test_command() -> None:
    text = run("doctor")
    assert text.returncode == 0, text.stderr
    assert len(text.stdout.splitlines()) < 24
    assert f"torch {torch.__version__}" in text.stdout
    report = json.loads(run("doctor", "--json").stdout)
    assert report["rooms"].keys() == {*ROOMS, "_engine"}


@pytest.mark.slow("a process of its own")
def test_a_torch_without_an_extension() -> None:
    """The rooms that need none work, the others say in a sentence what to do."""
    before = "from fxpress._torch import versions\nversions.built_for = lambda: ('2.1',)\n"
    found = run("doctor", "--json", before=before)
    assert found.returncode == 1, found.stderr
    report = json.loads(found.stdout)
    assert report["rooms"]["split_module"]["works"] is True
    assert report["rooms"]["_engine"]["works"] is False
    assert "pip install" in report["rooms"]["_engine"]["reason"]
    assert "none for torch" in run("doctor", before=before).stdout


@pytest.mark.parametrize("arguments", [(), ("nothing",), ("doctor", "--what")])
@pytest.mark.slow("a process of its own")
def test_bad_arguments(arguments: tuple[str, ...]) -> None:
    found = run(*arguments)
    assert found.returncode == 2
    assert "usage:" in found.stderr
