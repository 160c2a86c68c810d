"""`python -m fxpress doctor`: the components that work, as text and as JSON."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest
import torch

import fxpress
from fxpress._tools import doctor
from fxpress._torch import versions
from fxpress._torch.probes import COMPONENTS


def run(*arguments: str, before: str = "") -> subprocess.CompletedProcess[str]:
    script = f"import sys; sys.argv[1:] = {list(arguments)!r}\n{before}\n"
    script += "import runpy; runpy.run_module('fxpress', run_name='__main__', alter_sys=True)"
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )


def test_report() -> None:
    report = doctor.examine()
    assert report == json.loads(json.dumps(report))
    assert report["versions"]["torch"] == torch.__version__
    assert report["versions"]["python"] == platform.python_version()
    assert all(
        component == {"works": True, "reason": None} for component in report["components"].values()
    )
    assert versions.minor() in report["native"]["for_torch"]
    assert report["devices"][0] == "cpu"


def test_install_is_seen() -> None:
    with fxpress.installed(on_unsupported="torch"):
        install = doctor.examine()["install"]
        assert install["in_force"] is True
        assert install["policy"] == "torch"
        assert install["replaces"]["torch.export.unflatten"] > 10
        assert "torch.export.unflatten" in doctor.show(doctor.examine())
    after = doctor.examine()["install"]
    assert after["in_force"] is False
    assert after["replaces"] == {}


def test_components_that_do_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "COMPONENTS", ("split_module", "nowhere"))
    report = doctor.examine()
    assert report["components"]["split_module"] == {"works": True, "reason": None}
    reason = "ModuleNotFoundError: No module named 'fxpress.nowhere'"
    assert report["components"]["nowhere"] == {"works": False, "reason": reason}
    lines = [line.strip() for line in doctor.show(report).splitlines()]
    assert lines[lines.index(reason) - 1].split(maxsplit=1) == ["nowhere", "DOES NOT WORK"]


def test_a_part_for_other_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "built_for", lambda: ("2.1",))
    report = doctor.examine()
    assert report["native"] | {"for_every_torch": None} == {
        "for_every_torch": None,
        "for_torch": ["2.1"],
        "fits": False,
    }
    assert f"none for torch {torch.__version__}: {versions.REBUILD}" in doctor.show(report)


def test_accelerators_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: device)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    assert doctor.examine()["devices"] == ["cpu", "cuda:0", "cuda:1"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1", "install() does nothing: FXPRESS_DISABLE is set"),
        (" Yes ", "install() does nothing: FXPRESS_DISABLE is set"),
        ("", "install() is not in force"),
        ("0", "install() is not in force"),
    ],
)
def test_installing_may_be_turned_off(
    monkeypatch: pytest.MonkeyPatch, value: str, text: str
) -> None:
    monkeypatch.setenv("FXPRESS_DISABLE", value)
    assert text in doctor.show(doctor.examine())
    with fxpress.installed():
        assert fxpress.is_installed() == ("does nothing" not in text)


@pytest.mark.slow("a separate process")
def test_command() -> None:
    text = run("doctor")
    assert text.returncode == 0, text.stderr
    assert len(text.stdout.splitlines()) < 24
    assert f"torch {torch.__version__}" in text.stdout
    report = json.loads(run("doctor", "--json").stdout)
    assert report["components"].keys() == {*COMPONENTS, "engine"}


@pytest.mark.slow("a separate process")
def test_a_torch_without_an_extension() -> None:
    """Components that need no extension work; for others, `doctor` prints the remedy."""
    before = "from fxpress._torch import versions\nversions.built_for = lambda: ('2.1',)\n"
    found = run("doctor", "--json", before=before)
    assert found.returncode == 1, found.stderr
    report = json.loads(found.stdout)
    assert report["components"]["split_module"]["works"] is True
    assert report["components"]["engine"]["works"] is False
    assert "pip install" in report["components"]["engine"]["reason"]
    assert "none for torch" in run("doctor", before=before).stdout


@pytest.mark.parametrize("arguments", [(), ("nothing",), ("doctor", "--what")])
@pytest.mark.slow("a separate process")
def test_bad_arguments(arguments: tuple[str, ...]) -> None:
    found = run(*arguments)
    assert found.returncode == 2
    assert "usage:" in found.stderr.lower()
