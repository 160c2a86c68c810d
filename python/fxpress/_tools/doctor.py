"""Check which components of fxpress work in this environment, and how to fix broken ones."""

from __future__ import annotations

import importlib
import json
import platform
from typing import Any

import torch

from fxpress import _install, _native
from fxpress._install.installation import is_disabled
from fxpress._torch import versions
from fxpress._torch.probes import COMPONENTS, is_known

# A private module that is checked too, because it needs an extension built for the installed torch.
_ENGINE = "fxpress._graphs.engine"


def examine() -> dict[str, Any]:
    """Return the report as JSON objects: versions, components, native code, devices, `install`."""
    info = _native.build_info()
    return {
        "versions": {
            "fxpress": info["version"],
            "torch": torch.__version__,
            "torch_is_known": is_known(),
            "python": platform.python_version(),
            "platform": platform.platform(),
        },
        "components": {name: _component(f"fxpress.{name}") for name in COMPONENTS}
        | {"engine": _component(_ENGINE)},
        "native": {
            "for_every_torch": {"compiler": info["compiler"], "build_type": info["build_type"]},
            "for_torch": list(versions.built_for()),
            "fits": versions.minor() in versions.built_for(),
        },
        "devices": _devices(),
        "install": {
            "in_force": _install.is_installed(),
            "policy": _install.policy(),
            "disabled": is_disabled(),
            "replaces": _install.replaced(),
        },
    }


def _component(module: str) -> dict[str, Any]:
    try:
        importlib.import_module(module)
    except Exception as error:  # of any type, so that the report covers all components
        return {"works": False, "reason": f"{type(error).__name__}: {error}"}
    return {"works": True, "reason": None}


def _devices() -> list[str]:
    found = ["cpu"]
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        count = torch.accelerator.device_count()
        found += [f"{accelerator.type}:{index}" for index in range(count)]
    return found


def run(as_json: bool) -> int:
    """Print the report; return 0 if all components work with this torch, else 1."""
    report = examine()
    print(json.dumps(report, indent=2) if as_json else show(report))
    return 0 if all(component["works"] for component in report["components"].values()) else 1


def show(report: dict[str, Any]) -> str:
    """Return the report as text that fits on a screen."""
    found, components, native = report["versions"], report["components"], report["native"]
    known = "" if found["torch_is_known"] else " (a release that fxpress was not tested with)"
    lines = [
        f"fxpress {found['fxpress']}, torch {found['torch']}{known}, Python {found['python']}",
        found["platform"],
        "",
    ]
    width = max(map(len, components))
    for name, component in components.items():
        lines.append(f"{name:{width}}  {'works' if component['works'] else 'DOES NOT WORK'}")
        if not component["works"]:
            lines.append(f"{'':{width}}  {component['reason']}")
    built = ", ".join(native["for_torch"]) or "(none)"
    lines += ["", f"extension for tensors (_aten): built for torch {built}"]
    if not native["fits"]:
        lines.append(f"  none for torch {found['torch']}: {versions.REBUILD}")
    lines.append(f"devices: {', '.join(report['devices'])}")
    lines += ["", _show_installation(report["install"])]
    return "\n".join(lines)


def _show_installation(install: dict[str, Any]) -> str:
    if install["in_force"]:
        names = ", ".join(f"{count} of {name}" for name, count in install["replaces"].items())
        return f"install() is in force (on_unsupported={install['policy']!r}): {names}"
    if install["disabled"]:
        return "install() does nothing: FXPRESS_DISABLE is set"
    return "install() is not in force in this process"
